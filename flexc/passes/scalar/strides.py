"""Compute the change of values when positions move by one in some direction.

A value has a *stride* if each move of the pair by one in the direction adds the same
amount to the value, wherever the pair is. A value of stride 0 is the same for all pairs
on one line in that direction. On the diagonal, q_idx and kv_idx grow together. Their
difference has stride 0, and so has every function of the difference, such as a bucket
of its logarithm. The analysis thus recognises functions of the difference, however they
are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import FloatAttr, IntegerType, i1
from xdsl.ir import Operation, OpResult, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.constants import float_constant, int_constant
from flexc.dialects.mod_region import yielded
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import position_args
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.variation import UNLIMITED, IntegerFacts

KEEP_WHOLE = (
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.NegfOp,
    arith.ExtFOp,
    arith.TruncFOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.MaxnumfOp,
    arith.MinnumfOp,
    math_dialect.AbsFOp,
)
"""Ops that map whole numbers to whole numbers."""


class WholeNumbers(IntegerFacts):
    """Ranges of the values of a mod's region, and the properties that they prove."""

    known_bits: ClassVar[int] = UNLIMITED

    def __init__(self, region: Region, max_length: int, fits: bool):
        position = Interval(0, min(max(max_length - 1, 0), INDEX.hi))
        known = (INDEX, INDEX, position, position)
        args = position_args(region)
        super().__init__(region, dict(zip(args, known, strict=True)), fits)
        self.floats = FloatRanges(self.ranges, {})
        self._whole: dict[SSAValue, bool] = {}

    def is_nonnegative(self, value: SSAValue) -> bool:
        return self.ranges[value].is_nonnegative

    def fits_in(self, value: SSAValue, width: int) -> bool:
        """Return True if an integer, or a whole float, fits `width` bits, signed."""
        bounds = intervals.full(width)
        if value.type not in FORMATS:
            return self.ranges[value].within(bounds)
        known = self.floats[value]
        return known.is_finite and bounds.lo <= known.lo and known.hi <= bounds.hi

    def is_whole(self, value: SSAValue) -> bool:
        """Return True if a float is a whole number, computed without rounding."""
        found = self._whole.get(value)
        if found is None:
            small = self._is_small(value)
            found = self._whole[value] = small and self._is_whole(value.owner)
        return found

    def _is_small(self, value: SSAValue) -> bool:
        """Return True if the float's type holds all whole numbers in its range."""
        fmt = FORMATS.get(value.type)
        if fmt is None:
            return False
        known = self.floats[value]
        return known.is_finite and not known.nan and known.size <= 1 << fmt.digits

    def _is_whole(self, op: object) -> bool:
        match op:
            case arith.ConstantOp(value=FloatAttr() as attr):
                return attr.value.data.is_integer()
            case arith.SIToFPOp() | arith.UIToFPOp():
                return True
            case arith.SelectOp():
                return self.is_whole(op.lhs) and self.is_whole(op.rhs)
            case Operation() if isinstance(op, KEEP_WHOLE):
                return all(map(self.is_whole, op.operands))
            case _:
                return False


class AssumedExact:
    """Assumptions that no integer wraps around and that no comparison changes.

    The assumptions are unproven, so use the strides for decisions about speed only. The
    strides hold between neighbours on the same side of every comparison.
    """

    known_bits: ClassVar[int] = UNLIMITED

    def is_exact(self, op: Operation) -> bool:
        return True

    def is_nonnegative(self, value: SSAValue) -> bool:
        return True

    def fits_in(self, value: SSAValue, width: int) -> bool:
        return True

    def is_whole(self, value: SSAValue) -> bool:
        return False


@dataclass(frozen=True)
class LowBits:
    """No assumption about the size of integers: every sum may wrap around.

    Only indices are exact. They are not negative. The strides hold for the pairs that
    count: an index that is clamped to a limit beyond which pairs are idle is exact too.
    """

    known_bits: int
    """The lowest bits of wider integers that strides are known of."""

    def is_exact(self, op: Operation) -> bool:
        return False

    def is_nonnegative(self, value: SSAValue) -> bool:
        return True

    def fits_in(self, value: SSAValue, width: int) -> bool:
        return False

    def is_whole(self, value: SSAValue) -> bool:
        return False


Numbers = WholeNumbers | AssumedExact | LowBits


@dataclass(frozen=True)
class Stride:
    """The amount that each move in a direction adds to a value.

    For an integer, the sum is modulo two to the power of its width, or of the number of
    its bits that are known. If `exact`, the value as a signed integer changes by the
    step, without wrapping around. For a float, the sum is not rounded.
    """

    step: int
    exact: bool = True


INVARIANT = Stride(0)
"""The stride of values that are the same everywhere in a direction."""

Strides = Sequence[Stride]
Rule = Callable[[Any, Strides, Numbers], Stride | None]


class StrideAnalysis:
    """The stride of each value of a region in one direction, None if none was proved.

    `known` has the strides of the region's arguments.
    """

    def __init__(
        self, region: Region, known: Mapping[SSAValue, Stride | None], numbers: Numbers
    ):
        self.numbers = numbers
        self._known = dict(known)
        for op in region.block.ops:
            found = self._of(op)
            for result in op.results:
                self._known[result] = found

    def __getitem__(self, value: SSAValue) -> Stride | None:
        return self._known[value]

    def is_invariant(self, value: SSAValue) -> bool:
        """Return True if a value is the same everywhere in the direction."""
        return self[value] == INVARIANT

    def _of(self, op: Operation) -> Stride | None:
        if isinstance(self.numbers, AssumedExact) and i1 in op.result_types:
            return INVARIANT
        known = [d for v in op.operands if (d := self[v]) is not None]
        if len(known) < len(op.operands):
            return None
        if all(d == INVARIANT for d in known):
            return INVARIANT
        rule = RULES.get(type(op))
        stride = None if rule is None else rule(op, known, self.numbers)
        if stride is None or stride.step:
            return stride
        # A stride of 0 modulo two to the power of the width is invariant too.
        return stride if has_unknown_bits(op.results[0], self.numbers) else INVARIANT


def has_unknown_bits(value: SSAValue, numbers: Numbers) -> bool:
    """Return True if strides are known of only the lowest bits of an integer."""
    is_integer = isinstance(value.type, IntegerType)
    return is_integer and width_of(value.type) > numbers.known_bits


def _sum(sign: int) -> Rule:
    def rule(op: Operation, strides: Strides, numbers: Numbers) -> Stride:
        a, b = strides
        exact = a.exact and b.exact and numbers.is_exact(op)
        return Stride(a.step + sign * b.step, exact)

    return rule


def _product(op: arith.MuliOp, strides: Strides, numbers: Numbers) -> Stride | None:
    a, b = strides
    moving, factor = (a, op.rhs) if b.step == 0 else (b, op.lhs)
    constant = int_constant(factor)
    if constant is None:
        return None
    return Stride(moving.step * constant, moving.exact and numbers.is_exact(op))


def _shift(op: arith.ShLIOp, strides: Strides, numbers: Numbers) -> Stride | None:
    by = int_constant(op.rhs)
    if by is None or not 0 <= by < width_of(op.result.type):
        return None
    return Stride(strides[0].step << by, strides[0].exact and numbers.is_exact(op))


def _truncated(op: arith.TruncIOp, strides: Strides, numbers: Numbers) -> Stride:
    kept = numbers.fits_in(op.input, width_of(op.result.type))
    return Stride(strides[0].step, strides[0].exact and kept)


def _extended(op: Operation, strides: Strides, numbers: Numbers) -> Stride | None:
    signed = isinstance(op, arith.ExtSIOp) or numbers.is_nonnegative(op.operands[0])
    if strides[0].exact and signed:
        return strides[0]
    # Extension changes no bit of its operand.
    is_known = width_of(op.operands[0].type) >= numbers.known_bits
    return Stride(strides[0].step, exact=False) if is_known else None


def _together(strides: Strides) -> Stride | None:
    """Return the stride that all values have as exact numbers, else None."""
    shared = all(d.exact and d.step == strides[0].step for d in strides)
    return strides[0] if shared else None


def _extremum(op: Operation, strides: Strides, numbers: Numbers) -> Stride | None:
    return _together(strides)


def _least(op: arith.MinSIOp, strides: Strides, numbers: Numbers) -> Stride | None:
    index, limit = strides
    is_idle = tile.IDLE_BEYOND in op.attributes and isinstance(numbers, LowBits)
    if is_idle and index.exact and limit == INVARIANT:
        return index
    return _together(strides)


def _chosen(op: arith.SelectOp, strides: Strides, numbers: Numbers) -> Stride | None:
    test, a, b = strides
    if test.step != 0 or a.step != b.step:
        return None
    return Stride(a.step, a.exact and b.exact)


def _compared(op: arith.CmpiOp, strides: Strides, numbers: Numbers) -> Stride | None:
    predicate = predicate_of(op)
    if predicate in ("eq", "ne") and not has_unknown_bits(op.lhs, numbers):
        return INVARIANT if strides[0].step == strides[1].step else None
    if predicate[0] == "u" and not all(map(numbers.is_nonnegative, op.operands)):
        return None
    return None if _together(strides) is None else INVARIANT


def _floats_compared(
    op: arith.CmpfOp, strides: Strides, numbers: Numbers
) -> Stride | None:
    return None if _together(strides) is None else INVARIANT


def _to_float(op: Operation, strides: Strides, numbers: Numbers) -> Stride | None:
    signed = isinstance(op, arith.SIToFPOp) or numbers.is_nonnegative(op.operands[0])
    whole = numbers.is_whole(op.results[0])
    return strides[0] if strides[0].exact and signed and whole else None


def _to_integer(op: Operation, strides: Strides, numbers: Numbers) -> Stride | None:
    kept = numbers.fits_in(op.operands[0], width_of(op.results[0].type))
    return strides[0] if kept else None


def _of_floats(combine: Callable[[Strides], int]) -> Rule:
    """Return a rule for float ops on whole numbers, where no result is rounded."""

    def rule(op: Operation, strides: Strides, numbers: Numbers) -> Stride | None:
        values = (*op.operands, *op.results)
        return Stride(combine(strides)) if all(map(numbers.is_whole, values)) else None

    return rule


def _float_product(
    op: arith.MulfOp, strides: Strides, numbers: Numbers
) -> Stride | None:
    a, b = strides
    moving, factor = (a, op.rhs) if b.step == 0 else (b, op.lhs)
    constant = float_constant(factor)
    if constant is None or not numbers.is_whole(op.result):
        return None
    return Stride(moving.step * int(constant))


RULES: Mapping[type[Operation], Rule] = {
    arith.AddiOp: _sum(1),
    arith.SubiOp: _sum(-1),
    arith.MuliOp: _product,
    arith.ShLIOp: _shift,
    arith.TruncIOp: _truncated,
    arith.ExtSIOp: _extended,
    arith.ExtUIOp: _extended,
    arith.MinSIOp: _least,
    arith.MaxSIOp: _extremum,
    arith.SelectOp: _chosen,
    arith.CmpiOp: _compared,
    arith.CmpfOp: _floats_compared,
    arith.SIToFPOp: _to_float,
    arith.UIToFPOp: _to_float,
    arith.FPToSIOp: _to_integer,
    arith.AddfOp: _of_floats(lambda strides: strides[0].step + strides[1].step),
    arith.SubfOp: _of_floats(lambda strides: strides[0].step - strides[1].step),
    arith.NegfOp: _of_floats(lambda strides: -strides[0].step),
    arith.MulfOp: _float_product,
    arith.ExtFOp: _of_floats(lambda strides: strides[0].step),
    arith.TruncFOp: _of_floats(lambda strides: strides[0].step),
    arith.MinimumfOp: _extremum,
    arith.MaximumfOp: _extremum,
    arith.MinnumfOp: _extremum,
    arith.MaxnumfOp: _extremum,
}
"""Rules for ops whose operands have known strides that are not all 0."""


def strides_of_mod(
    region: Region, moving: Sequence[SSAValue], numbers: WholeNumbers
) -> StrideAnalysis:
    """Return the strides of a mod's values when all positions in `moving` grow by 1.

    The score, if it is the first argument, has no stride.
    """
    known: dict[SSAValue, Stride | None] = {
        arg: Stride(1) if arg in moving else INVARIANT for arg in region.block.args
    }
    first = region.block.args[0]
    if not isinstance(first.type, IntegerType):
        known[first] = None
    return StrideAnalysis(region, known, numbers)


def step_along(op: tile.MapOp, value: SSAValue, dim: int) -> int | None:
    """Return the step of a map's value along a dimension, None if it is unknown.

    A read whose offset has step 1 is contiguous. The step rests on `AssumedExact`: use
    it for decisions about speed only.
    """
    stride = MapStrides(AssumedExact()).along(op, dim)[value]
    return None if stride is None else stride.step


class MapStrides:
    """The strides of values of maps along dimensions, computed once for each."""

    def __init__(self, numbers: AssumedExact | LowBits):
        self.numbers = numbers
        self._known: dict[tuple[tile.MapOp, int], StrideAnalysis] = {}

    def along(self, op: tile.MapOp, dim: int) -> StrideAnalysis:
        """Return the strides of a map's values along a dimension."""
        if (op, dim) not in self._known:
            args: dict[SSAValue, Stride | None] = {
                arg: self._of_operand(op, arg.index, dim) for arg in op.body.block.args
            }
            self._known[op, dim] = StrideAnalysis(op.body, args, self.numbers)
        return self._known[op, dim]

    def _of_operand(self, op: tile.MapOp, index: int, dim: int) -> Stride | None:
        span = op.span(index)
        if dim not in span or self._is_ignored(op.body.block.args[index]):
            return INVARIANT
        source = op.inputs[index]
        if isinstance(source.owner, tile.IotaOp):
            return Stride(1)
        if isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult):
            strides = self.along(source.owner, span.index(dim))
            return strides[yielded(source.owner.body.block)[source.index]]
        return None

    def _is_ignored(self, value: SSAValue) -> bool:
        """Return True for the result of a comparison that is assumed not to change."""
        return isinstance(self.numbers, AssumedExact) and value.type == i1
