"""Copy values of a mod's region, with the ops that compute them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import FileLineColLoc, IntegerType, i64
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from flexc.errors import SourceLocation
from flexc.passes.scalar.formula import AllOf, Formula, Leaf
from flexc.passes.scalar.scalar_code import ScalarCode, new_region
from flexc.passes.scalar.variation import Linear


class Copier:
    """A copier of values of a mask region, with the ops that compute them, to a block.

    `known` maps values of the region to values of the block that replace them.
    """

    def __init__(self, code: ScalarCode, known: Mapping[SSAValue, SSAValue]):
        self.code, self.known = code, dict(known)

    def value(self, value: SSAValue) -> SSAValue:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._copied(value.owner)
        return found

    def _copied(self, op: Operation | Block) -> SSAValue:
        assert isinstance(op, Operation), "expected a value of known arguments"
        return self.code.insert(op.clone({v: self.value(v) for v in op.operands}))

    def formula(self, formula: Formula) -> SSAValue:
        """Append code that evaluates a formula, and return its i1 result."""
        code = self.code
        if isinstance(formula, Leaf):
            value = self.value(formula.value)
            if not formula.negated:
                return value
            return code.not_(value)
        is_all = isinstance(formula, AllOf)
        total = code.flag(is_all)
        for part in formula.parts:
            kind = arith.AndIOp if is_all else arith.OrIOp
            total = code.insert(kind(total, self.formula(part)))
        return total

    def linear(self, form: Linear) -> SSAValue:
        """Append code that evaluates a form, and return its result as an i64.

        The form must fit i64. A form that is a single value keeps that value's type.
        """
        if not form.const and [f for _, f in form.terms] == [1]:
            return self.value(form.terms[0][0])
        total = self.code.const(form.const, i64)
        for value, factor in form.terms:
            wide = self.code.int_cast(self.value(value), i64)
            total = self.code.add(
                total, self.code.mul(wide, self.code.const(factor, i64))
            )
        return total


def sources_of(
    values: Iterable[SSAValue], known: SSAValue | None = None
) -> set[SSAValue]:
    """Return values of a region and their sources, without those of `known`."""
    found: set[SSAValue] = set()
    left = list(values)
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            if isinstance(op := value.owner, Operation) and value is not known:
                left += op.operands
    return found


def needed(value: SSAValue) -> list[Operation]:
    """Return the ops of a region that compute a value, in order."""
    last, found = value.owner, sources_of([value])
    if not isinstance(last, Operation) or last.parent is None:
        return []
    return [op for op in last.parent.ops if not found.isdisjoint(op.results)]


def sliced(region: Region, values: Sequence[SSAValue]) -> Region:
    """Return a region that computes values of a mod that do not depend on the score.

    The region's arguments are b, h, q_idx, kv_idx and the captures. It yields the
    values.
    """
    kept = [a for a in region.block.args if a.index or isinstance(a.type, IntegerType)]
    return copied(region, values, kept)


def copied(
    region: Region, values: Sequence[SSAValue], kept: Sequence[BlockArgument]
) -> Region:
    """Return a region of the `kept` arguments of another that yields values of it."""
    made = new_region([a.type for a in kept], [a.name_hint for a in kept])
    code = ScalarCode(made.block)
    copier = Copier(code, dict(zip(kept, made.block.args, strict=True)))
    code.yield_(*map(copier.value, values))
    return made


def location_of(op: Operation) -> SourceLocation | None:
    """Return the line of the user's function that an op was imported from, if known."""
    at = op.location
    if not isinstance(at, FileLineColLoc):
        return None
    return SourceLocation(at.filename.data, at.line.data)
