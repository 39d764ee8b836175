"""Ranges of a mod's integers as torch's eager mode has them: indices are int64.

Arithmetic on positions, captured integers, sizes and literals is exact, although
the frontend writes it as i32 and cuts captured integers to that. What was loaded
from a tensor, or was cast by the user, is computed in its own type, where it wraps,
until it meets a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.analysis import intervals
from flexc.passes.analysis.intervals import Interval, full, point
from flexc.passes.analysis.value_ranges import ValueRanges, width_of

EXACT_BITS = 64
"""The width of torch's indices."""

DIVISIONS = (arith.DivSIOp, arith.FloorDivSIOp, arith.CeilDivSIOp, arith.RemSIOp)

ARITHMETIC = (
    *DIVISIONS,
    arith.AddiOp,
    arith.SubiOp,
    arith.MuliOp,
    arith.MinSIOp,
    arith.MaxSIOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.ShLIOp,
    arith.ShRSIOp,
    arith.SelectOp,
    arith.ExtSIOp,
    math_dialect.AbsIOp,
)
"""What means the same of sign-extended operands, as long as nothing overflows."""


class Origin(Enum):
    """Where an integer comes from, and so which arithmetic is its own."""

    NUMBER = auto()
    """Captured integers, sizes and literals alone."""
    POSITION = auto()
    """b, h, q_idx or kv_idx, and maybe others."""
    OTHER = auto()
    """Loaded values, casts and flags."""


def position_args(region: Region) -> Sequence[SSAValue]:
    """b, h, q_idx and kv_idx of a mod's region."""
    first = 0 if isinstance(region.block.args[0].type, IntegerType) else 1
    return region.block.args[first : first + len(INDEX_ARGS)]


def known_of_call(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[int | tuple[int, ...] | None],
) -> dict[SSAValue, Interval]:
    """Ranges of a region's arguments and sizes in one call.

    `positions` are the ranges of b, h, q_idx and kv_idx; `captures` what is known
    of the captures: an integer, a tensor's shape, or None.
    """
    known = dict(zip(position_args(region), positions, strict=True))
    args = region.block.args[len(region.block.args) - len(captures) :]
    given = dict(zip(args, captures, strict=True))
    for arg, what in given.items():
        if isinstance(what, int) and isinstance(arg.type, IntegerType):
            known[arg] = point(what)
    for op in region.block.ops:
        if isinstance(op, flex.DimOp):
            shape = given[op.tensor]
            assert isinstance(shape, tuple)
            known[op.result] = point(shape[op.dim.value.data])
    return known


class ExactRanges(ValueRanges):
    """Ranges of the values of a mod's region, where exact ones do not wrap.

    So the range of an i32 may be too large for an i32: `fits` tells.
    """

    def __init__(self, region: Region, known: Mapping[SSAValue, Interval]):
        super().__init__(known)
        self._origins: dict[SSAValue, Origin] = dict.fromkeys(
            position_args(region), Origin.POSITION
        )

    def origin(self, value: SSAValue) -> Origin:
        """Where an integer comes from."""
        found = self._origins.get(value)
        if found is None:
            found = self._origins[value] = self._origin(value)
        return found

    def _origin(self, value: SSAValue) -> Origin:
        if not isinstance(value.type, IntegerType) or width_of(value.type) == 1:
            return Origin.OTHER
        match value.owner:
            case Block() | arith.ConstantOp() | flex.DimOp():
                return Origin.NUMBER
            case arith.TruncIOp(input=source):
                # The frontend's cut of a captured number. Others are the user's.
                number = self.origin(source) is Origin.NUMBER
                return Origin.NUMBER if number else Origin.OTHER
            case arith.SelectOp(lhs=a, rhs=b):
                return self.meet((a, b))
            case Operation() as op if isinstance(op, ARITHMETIC):
                return self.meet(op.operands)
            case _:
                return Origin.OTHER

    def meet(self, values: Iterable[SSAValue]) -> Origin:
        """Of a result: positions make all exact, loaded values cut numbers."""
        origins = [self.origin(v) for v in values]
        if Origin.POSITION in origins:
            return Origin.POSITION
        return Origin.OTHER if Origin.OTHER in origins else Origin.NUMBER

    def is_exact(self, value: SSAValue) -> bool:
        """Whether a value is what int64 arithmetic gives."""
        return self.origin(value) is not Origin.OTHER

    def fits(self, value: SSAValue) -> bool:
        """Whether a value's type holds all that it may be."""
        if not isinstance(value.type, IntegerType):
            return True
        return self[value].within(full(width_of(value.type)))

    def width(self, value: SSAValue) -> int:
        width = super().width(value)
        return max(width, EXACT_BITS) if self.is_exact(value) else width

    def _compute(self, value: SSAValue) -> Interval:
        op = value.owner
        if not isinstance(op, Operation) or self.is_exact(value):
            return self._exact_result(op, value)
        if all(map(self.fits, op.operands)):
            return super()._compute(value)
        return full(width_of(value.type))

    def _exact_result(self, op: Operation | Block, value: SSAValue) -> Interval:
        if isinstance(op, DIVISIONS) and 0 in self[op.rhs]:
            # Some number of the type that the division is done in.
            narrow = all(map(self.fits, op.operands))
            return full(width_of(value.type) if narrow else EXACT_BITS)
        if isinstance(op, arith.AddiOp):
            chosen = self._chosen_sum(op)
            return super()._compute(value) if chosen is None else chosen
        return super()._compute(value)

    def _chosen_sum(self, op: arith.AddiOp) -> Interval | None:
        """The range of x + n where it is chosen by every `select(.., x + n, x)`.

        Python's `%` and negative indices are spelled so; where x is chosen, the sum
        may overflow, and nobody sees it.
        """
        for x, n in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            uses = [use.operation for use in op.result.uses]
            tests = [_test_of(use, op.result, x) for use in uses]
            if tests and all(t is not None and is_negative(t, x) for t in tests):
                if self[x].is_nonnegative:
                    return self[x]
                below = Interval(self[x].lo, min(self[x].hi, -1))
                return intervals.add(below, self[n], EXACT_BITS)
            if tests and all(t is not None and signs_differ(t, x, n) for t in tests):
                return intervals.union(self[x], self[n])
        return None


def _test_of(user: Operation, total: SSAValue, x: SSAValue) -> SSAValue | None:
    """c of `select(c, total, x)`."""
    if not isinstance(user, arith.SelectOp) or user.lhs is not total:
        return None
    return user.cond if user.rhs is x else None


def is_negative(test: SSAValue, x: SSAValue) -> bool:
    """Whether a flag is x < 0."""
    op = test.owner
    if not isinstance(op, arith.CmpiOp) or op.lhs is not x:
        return False
    less = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data] == "slt"
    return less and is_zero(op.rhs)


def is_zero(value: SSAValue) -> bool:
    """Whether a value is the integer constant 0."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, IntegerAttr):
        return False
    return op.value.value.data == 0


def signs_differ(test: SSAValue, x: SSAValue, n: SSAValue) -> bool:
    """Whether a flag is false unless exactly one of x and n is negative."""
    op = test.owner
    if isinstance(op, arith.AndIOp):
        return signs_differ(op.lhs, x, n) or signs_differ(op.rhs, x, n)
    return (
        isinstance(op, arith.XOrIOp)
        and is_negative(op.lhs, x)
        and is_negative(op.rhs, n)
    )
