"""Compute tangents of results from tangents of operands (forward mode)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.differentiation.derivative_code import (
    DerivativeCode,
    Local,
    Step,
    derivative_type,
)
from flexc.passes.scalar.differentiation.partials import has_partials, partials_of
from flexc.passes.scalar.differentiation.terms import (
    Term,
    converted,
    finished,
    guarded,
    reseeded,
    take,
    total,
)
from flexc.passes.scalar.scalar_code import ScalarCode


class Tangents:
    """The tangents of the values of straight-line scalar code.

    `tangents[value]` is a number of type `derivative_type(value.type)`, or None if the
    tangent is zero at all pairs. The access appends code, so access all tangents before
    the block gets its terminator.
    """

    def __init__(self, code: DerivativeCode, terms: Mapping[SSAValue, Term]):
        self._code = code
        self._terms = terms

    def __getitem__(self, value: SSAValue) -> SSAValue | None:
        term = self._terms.get(value)
        if term is None:
            return None
        tangent = finished(self._code, term)
        if tangent.name_hint is None and value.name_hint is not None:
            tangent.name_hint = f"t_{value.name_hint}"
        return tangent


def push_forward(
    code: ScalarCode,
    ops: Sequence[Operation],
    tangents: Mapping[SSAValue, SSAValue | None],
    captured: Mapping[SSAValue, SSAValue] | None = None,
    wanted: Collection[SSAValue] | None = None,
) -> Tangents:
    """Append the code of tangents, given tangents of values that `ops` read.

    `ops` are straight-line scalar code in order. Their values must be visible where
    `code` appends. `ops` may be derivative code. `captured` maps a captured tensor to
    the tensor of its tangents, which the code reads at the same indices. Values that
    neither mapping has do not vary. `wanted` are the values whose tangents the caller
    reads; None means all.
    """
    captured = captured or {}
    given = {v: t for v, t in tangents.items() if t is not None}
    writer = DerivativeCode(code, given, ops)
    terms: dict[SSAValue, Term] = {}
    for value, tangent in given.items():
        terms[value] = Term(writer.as_type(tangent, derivative_type(value.type)))
    ops = ops if wanted is None else needed(ops, wanted)
    uses = Counter(v for op in ops for v in op.operands)
    for op in ops:
        writer.location = op.location
        tangent = _tangent(writer, op, terms, captured)
        if tangent is None or (result := op.results[0]) in given:
            continue
        again = uses[result] > 1
        terms[result] = reseeded(writer, tangent) if again else tangent
    return Tangents(writer, terms)


def needed(
    ops: Sequence[Operation], wanted: Collection[SSAValue]
) -> Sequence[Operation]:
    """Return the ops that compute some values, in order."""
    values, found = set(wanted), list[Operation]()
    for op in reversed(ops):
        if any(r in values for r in op.results):
            values.update(op.operands)
            found.append(op)
    return found[::-1]


def _tangent(
    code: DerivativeCode,
    op: Operation,
    terms: Mapping[SSAValue, Term],
    captured: Mapping[SSAValue, SSAValue],
) -> Term | None:
    """Return the tangent of an op's result; None for zero."""
    if isinstance(op, flex.LoadCaptureOp):
        return _read(code, op, captured)
    if len(op.results) != 1 or not isinstance(op.results[0].type, AnyFloat):
        return None
    if not has_partials(op, terms.keys()):
        return None
    code.varying.add(op.results[0])
    local = Local(code, op)
    parts: list[tuple[Term, list[Step]]] = []
    for value, formula in partials_of(op):
        if (term := terms.get(value)) is not None:
            parts.append((converted(code, term, local.type), list(formula(local))))
    last = _shared_steps([steps for _, steps in parts])
    result = total(code, [take(code, term, steps) for term, steps in parts])
    return None if result is None else guarded(code, take(code, result, last))


def _read(
    code: DerivativeCode, op: flex.LoadCaptureOp, captured: Mapping[SSAValue, SSAValue]
) -> Term | None:
    tensor = captured.get(op.tensor)
    if tensor is None or not isinstance(op.result.type, AnyFloat):
        return None
    inside = op.inside is not None
    read = code.insert(flex.LoadCaptureOp(tensor, op.indices, inside))
    code.varying.add(op.result)
    return Term(code.as_type(read, derivative_type(op.result.type)))


def _shared_steps(chains: Sequence[list[Step]]) -> list[Step]:
    """Remove the longest common end of several chains from them, and return it."""
    last: list[Step] = []
    if len(chains) < 2:
        return last
    while all(chains) and all(c[-1] == chains[0][-1] for c in chains):
        last.insert(0, chains[0][-1])
        for chain in chains:
            chain.pop()
    return last
