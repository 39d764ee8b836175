"""Ranges of a mod's integers as torch's eager mode has them: indices are int64.

Arithmetic on positions, captured integers, sizes and literals is exact, although
the frontend writes it as i32 and cuts numbers to that. What was loaded
from a tensor, or was cast by the user, is computed in its own type, where it wraps,
until it meets a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.chosen_sums import (
    is_negative,
    signs_differ,
    tests_of,
)
from flexc.passes.scalar.ranges.intervals import (
    Interval,
    full,
    point,
)
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of

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


Known = int | Interval | tuple[int, ...] | None
"""Of a capture in calls: an integer, the range of one, a tensor's shape, or nothing."""


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
    captures: Sequence[Known],
) -> dict[SSAValue, Interval]:
    """Ranges of a region's arguments and sizes in a call, or in some.

    `positions` are the ranges of b, h, q_idx and kv_idx.
    """
    known = dict(zip(position_args(region), positions, strict=True))
    args = region.block.args[len(region.block.args) - len(captures) :]
    given: dict[SSAValue, Known] = dict(zip(args, captures, strict=True))
    for arg, what in given.items():
        if isinstance(what, int | Interval) and isinstance(arg.type, IntegerType):
            known[arg] = what if isinstance(what, Interval) else point(what)
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
        if not isa(value.type, IntegerType) or value.type == i1:
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
        if not isa(value.type, IntegerType):
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
        """The range of x + n where it is used only where a test of x holds.

        Elsewhere it may overflow, and nobody sees it.
        """
        for x, n in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if (tests := tests_of(op.result, x)) is None:
                continue
            if all(is_negative(test, x) for test in tests):
                return self._sum_where_negative(self[x], self[n])
            if all(signs_differ(test, x, n) for test in tests):
                return intervals.union(self[x], self[n])
        return None

    def _sum_where_negative(self, x: Interval, n: Interval) -> Interval:
        if x.is_nonnegative:
            return x
        return intervals.add(Interval(x.lo, min(x.hi, -1)), n, EXACT_BITS)
