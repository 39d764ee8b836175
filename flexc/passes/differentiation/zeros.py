"""Which products with 0 are 0: those without a factor that may be infinite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from flexc.passes.analysis.ranges.float_intervals import FloatInterval, point
from flexc.passes.analysis.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.analysis.ranges.value_ranges import ValueRanges


def sources(ops: Sequence[Operation]) -> set[SSAValue]:
    """What ops read and do not compute."""
    results = {r for op in ops for r in op.results}
    return {v for op in ops for v in op.operands} - results


class Zeros:
    """What values are where others are 0.

    What code reads is taken to be finite, but for captured elements: minus infinity is
    how one masks. What it computes is taken not to be NaN, as all results are then.
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
        """Whether a value is 0 there, and never NaN."""
        found = self.ranges[value]
        return (found.lo, found.hi, found.nan) == (0.0, 0.0, False)
