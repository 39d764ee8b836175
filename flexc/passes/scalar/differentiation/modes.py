"""Forward mode computes tangents of results from tangents of operands.

Reverse mode computes adjoints of operands from adjoints of results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

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
from flexc.passes.scalar.ranges.float_intervals import FloatInterval, point
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
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
) -> Tangents:
    """Append the code of tangents, given tangents of values that `ops` read.

    `ops` are straight-line scalar code in order. Their values must be visible where
    `code` appends. `ops` may be derivative code. `captured` maps a captured tensor to
    the tensor of its tangents, which the code reads at the same indices. Values that
    neither mapping has do not vary.
    """
    captured = captured or {}
    given = {v: t for v, t in tangents.items() if t is not None}
    writer = DerivativeCode(code, given, ops)
    terms: dict[SSAValue, Term] = {}
    for value, tangent in given.items():
        terms[value] = Term(writer.as_type(tangent, derivative_type(value.type)))
    uses = Counter(v for op in ops for v in op.operands)
    for op in ops:
        writer.location = op.location
        tangent = _tangent(writer, op, terms, captured)
        if tangent is None or (result := op.results[0]) in given:
            continue
        again = uses[result] > 1
        terms[result] = reseeded(writer, tangent) if again else tangent
    return Tangents(writer, terms)


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


def sources(ops: Sequence[Operation]) -> set[SSAValue]:
    """Return the values that ops read and do not compute."""
    results = {r for op in ops for r in op.results}
    return {v for op in ops for v in op.operands} - results


class Zeros:
    """The values that are 0 at all pairs where the values `zeros` are 0.

    Values from outside of `ops` are assumed to be finite. Captured elements may be
    infinite, because users mask with minus infinity. Results of `ops` are assumed not
    to be NaN: a NaN makes the kernel's results NaN anyway.
    """

    def __init__(self, ops: Sequence[Operation], zeros: Iterable[SSAValue]):
        known: dict[SSAValue, FloatInterval] = {}
        for value in sources(ops):
            if (fmt := FORMATS.get(value.type)) is not None:
                known[value] = FloatInterval(-fmt.largest, fmt.largest)
        for op in ops:
            for result in op.results:
                if result.type in FORMATS:
                    found = FloatRanges(ValueRanges({}), known)[result]
                    known[result] = replace(found, nan=False)
        for value in zeros:
            known[value] = point(0.0, FORMATS[value.type])
        self.ranges = FloatRanges(ValueRanges({}), known)

    def __contains__(self, value: SSAValue) -> bool:
        """Return True if a value is proved to be 0, and not NaN, at these pairs."""
        found = self.ranges[value]
        return (found.lo, found.hi, found.nan) == (0.0, 0.0, False)


class Adjoints:
    """The adjoints of the values of straight-line scalar code.

    `adjoints[value]` is a number of type `derivative_type(value.type)`, or None if the
    adjoint is zero at all pairs. The access appends code, so access all adjoints before
    the block gets its terminator.
    """

    def __init__(
        self,
        code: DerivativeCode,
        terms: Mapping[SSAValue, Term],
        loads: Sequence[flex.LoadCaptureOp],
        live: tuple[SSAValue, Zeros] | None,
    ):
        self._code = code
        self._terms = terms
        self._loads = loads
        self._live = live

    def __getitem__(self, value: SSAValue) -> SSAValue | None:
        term = self._terms.get(value)
        if term is None:
            return None
        adjoint = self._where_live(finished(self._code, term))
        if adjoint.name_hint is None and value.name_hint is not None:
            adjoint.name_hint = f"d_{value.name_hint}"
        return adjoint

    def _where_live(self, adjoint: SSAValue) -> SSAValue:
        """Return the adjoint, selected to be 0 at pairs that are not live.

        The adjoint may be NaN there: 0 times an infinite factor.
        """
        if self._live is None or adjoint in self._live[1]:
            return adjoint
        zero = self._code.const(0.0, adjoint.type)
        return self._code.select(self._live[0], adjoint, zero)

    @property
    def reads(self) -> list[tuple[flex.LoadCaptureOp, SSAValue]]:
        """The reads of captured tensors that have adjoints, with the adjoints."""
        found = ((load, self[load.result]) for load in self._loads)
        return [(load, adjoint) for load, adjoint in found if adjoint is not None]


def pull_back(
    code: ScalarCode,
    ops: Sequence[Operation],
    cotangents: Mapping[SSAValue, SSAValue],
    wanted: Collection[SSAValue] | None = None,
    where: SSAValue | None = None,
) -> Adjoints:
    """Append the code of adjoints, given adjoints of results.

    `ops` are straight-line scalar code in order. Their values must be visible where
    `code` appends. `wanted` has the floats whose adjoints the caller reads, and the
    tensors whose reads' adjoints the caller reads; None means all values that `ops`
    read. `where` is an i1, or None. The cotangents are 0 where `where` is false, and so
    are all adjoints, also if a derivative is infinite there.
    """
    varying = dependent(ops, sources(ops) if wanted is None else set(wanted))
    writer = DerivativeCode(code, varying, ops)
    terms: dict[SSAValue, list[Term]] = {}
    for value, cotangent in cotangents.items():
        given = writer.as_type(cotangent, derivative_type(value.type))
        terms[value] = [Term(given)]
    for op in reversed(ops):
        if any(r in varying and terms.get(r) for r in op.results):
            writer.location = op.location
            _pull_back_op(writer, op, varying, terms)
    sums = {v: s for v, parts in terms.items() if (s := total(writer, parts))}
    loads = [op for op in ops if isinstance(op, flex.LoadCaptureOp)]
    live = None if where is None else (where, Zeros(ops, cotangents.values()))
    return Adjoints(writer, sums, [op for op in loads if op.result in varying], live)


def dependent(ops: Sequence[Operation], on: set[SSAValue]) -> set[SSAValue]:
    """Return the values in `on`, and the float values that vary with one of them.

    `on` may contain captured tensors.
    """
    found = set(on)
    for op in ops:
        if isinstance(op, flex.LoadCaptureOp):
            varies = op.tensor in on
        else:
            varies = has_partials(op, found)
        if varies:
            found |= {r for r in op.results if isinstance(r.type, AnyFloat)}
    return found


def _pull_back_op(
    code: DerivativeCode,
    op: Operation,
    varying: set[SSAValue],
    terms: dict[SSAValue, list[Term]],
) -> None:
    """Replace the terms of the result's adjoint by their sum; add operands' terms."""
    (result,) = op.results
    adjoint = total(code, terms[result])
    terms[result] = [] if adjoint is None else [adjoint]
    if adjoint is None or isinstance(op, flex.LoadCaptureOp):
        return
    local = Local(code, op)
    inputs = [(v, formula) for v, formula in partials_of(op) if v in varying]
    if len(inputs) > 1:
        adjoint = reseeded(code, adjoint)
    for value, formula in inputs:
        term = take(code, adjoint, reversed(formula(local)))
        term = converted(code, term, derivative_type(value.type))
        terms.setdefault(value, []).append(term)
