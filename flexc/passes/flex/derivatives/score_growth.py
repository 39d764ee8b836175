"""Whether scores are about as large as the dot products that they are made of.

Then rounding takes no more from a row's log-sum-exp than it took from its scores, and
probabilities need no weights of rows (see `row_exponents`).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.float_intervals import FloatInterval, point
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges

MODERATE = 2.0**14
"""Dot products of this size: in f32 they are rounded by up to 2^-10."""

MORE = 2.0**4
"""By how much scores may be larger than that."""


def scores_stay_moderate(
    op: flex.WithMods, sizes: Sequence[int], numbers: Sequence[float | int | None]
) -> bool:
    """Whether moderate dot products have moderate scores.

    `sizes` are at least B, Hq, Sq and Skv; `numbers` the captures that are numbers.
    """
    args = op.score_mod.block.args
    last = op.score_mod.block.last_op
    assert isinstance(last, flex.YieldOp)
    integers: dict[SSAValue, Interval] = {
        arg: Interval(0, max(n - 1, 0)) for arg, n in zip(args[1:], sizes, strict=False)
    }
    moderate = FloatInterval(-MODERATE, MODERATE)
    floats: dict[SSAValue, FloatInterval] = {args[0]: moderate}
    for arg, value in zip(args[1 + len(INDEX_ARGS) :], numbers, strict=False):
        if isinstance(value, float) and arg.type in FORMATS:
            floats[arg] = point(value, FORMATS[arg.type])
        elif isinstance(value, int):
            integers[arg] = intervals.point(value)
    ranges = FloatRanges(ValueRanges(integers), floats)
    found = ranges.without_minus_inf(last.values[0])
    return found.is_finite and found.size <= MODERATE * MORE
