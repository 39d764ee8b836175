"""Integers of a mask as affine forms: a * q_idx + c * kv_idx + uniform values.

Only arithmetic that cannot wrap around is seen through, by the ranges of its
operands or because the call was proved to fit. A uniform value, one that is the
same for all pairs of a head, is a symbol: whatever it is computed by, it is that
bit pattern. Sums that meet a symbol whose size is unknown may still wrap; who uses
a form must check `Affine.unsized` at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, IntegerType, i1
from xdsl.ir import Operation, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.passes.analysis import intervals
from flexc.passes.analysis.dependence import Along, Dependences, indices
from flexc.passes.analysis.intervals import Interval
from flexc.passes.analysis.value_ranges import (
    BINARY,
    ValueRanges,
    to_signed,
    width_of,
)

MAX_COEFFICIENT = 1 << 20
"""Larger factors are not seen through, so that sums of products fit 64 bits."""

WIDE = 64
"""Symbols of so many bits stay in a form even where they cancel out: the sums they
were in may have wrapped around."""

UNBOUNDED_WIDTH = 512


@dataclass(frozen=True)
class Affine:
    """`row * q_idx + column * kv_idx + sum(n * value) + constant`, exactly."""

    row: int = 0
    column: int = 0
    symbols: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    constant: int = 0

    @property
    def is_uniform(self) -> bool:
        return not self.row and not self.column

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """This form and `factor` times another."""
        symbols = dict(self.symbols)
        for value, n in other.symbols.items():
            symbols[value] = symbols.get(value, 0) + factor * n
        return Affine(
            self.row + factor * other.row,
            self.column + factor * other.column,
            {v: n for v, n in symbols.items() if n or width_of(v.type) == WIDE},
            self.constant + factor * other.constant,
        )

    def times(self, factor: int) -> Affine:
        return Affine().plus(self, factor)


@dataclass(frozen=True)
class Facts:
    """A mask region, and what is known of its values."""

    region: Region
    ranges: ValueRanges
    along: Dependences
    fits: bool
    """Arithmetic on positions is known not to wrap around."""

    @staticmethod
    def of(region: Region, max_length: int, fits: bool) -> Facts:
        """For positions of sequences of up to `max_length`."""
        place = intervals.full(32).hi - 1
        position = Interval(0, min(max_length - 1, place))
        bounds = (Interval(0, place), Interval(0, place), position, position)
        known = dict(zip(indices(region), bounds, strict=True))
        return Facts(region, ValueRanges(known), Dependences(region), fits)

    def constant(self, value: SSAValue) -> int | None:
        """The value of an integer constant, read as signed."""
        op = value.owner
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            return to_signed(op.value.value.data, width_of(value.type))
        return None

    def is_exact(self, op: Operation) -> bool:
        """Whether an op's result is that of unbounded integers."""
        if self.fits:
            return True
        transfer = BINARY[type(op)]
        a, b = (self.ranges[v] for v in op.operands)
        whole = intervals.full(width_of(op.results[0].type))
        return transfer(a, b, UNBOUNDED_WIDTH).within(whole)

    def is_signed_exact(self, op: Operation) -> bool:
        """As `is_exact`; sums with unsized 64-bit symbols are left to the caller."""
        if self.is_exact(op):
            return True
        return width_of(op.results[0].type) == WIDE and any(
            self.along.is_uniform(v) for v in op.operands
        )

    def affine(self, value: SSAValue) -> Affine | None:
        """The form of an integer; None if it has none."""
        if not isa(value.type, IntegerType) or value.type == i1:
            return None
        if (number := self.constant(value)) is not None:
            return Affine(constant=number)
        if self.along.is_uniform(value):
            return Affine(symbols={value: 1})
        if value is self.region.block.args[2]:
            return Affine(row=1)
        if value is self.region.block.args[3]:
            return Affine(column=1)
        return self._affine_result(value)

    def _affine_result(self, value: SSAValue) -> Affine | None:
        match op := value.owner:
            case arith.ExtSIOp():
                return self.affine(op.input)
            case arith.ExtUIOp() if self.ranges[op.input].is_nonnegative:
                return self.affine(op.input)
            case arith.TruncIOp() if self._keeps(op):
                return self.affine(op.input)
            case arith.AddiOp() | arith.SubiOp() if self.is_signed_exact(op):
                a, b = (self.affine(v) for v in op.operands)
                sign = 1 if isinstance(op, arith.AddiOp) else -1
                return None if a is None or b is None else a.plus(b, sign)
            case arith.MuliOp() if self.is_exact(op):
                return self._product(op.lhs, op.rhs) or self._product(op.rhs, op.lhs)
            case arith.ShLIOp() if self.is_exact(op):
                by = self.constant(op.rhs)
                form = self.affine(op.lhs)
                sized = form is not None and by is not None and 0 <= by < 20
                return (
                    form.times(1 << by) if sized and form and by is not None else None
                )
            case _:
                return None

    def _keeps(self, op: arith.TruncIOp) -> bool:
        return self.ranges[op.input].within(intervals.full(width_of(op.result.type)))

    def _product(self, value: SSAValue, factor: SSAValue) -> Affine | None:
        number, form = self.constant(factor), self.affine(value)
        if number is None or form is None or abs(number) > MAX_COEFFICIENT:
            return None
        return form.times(number)

    def varies(self, value: SSAValue, along: Along) -> bool:
        return bool(self.along[value] & along)
