"""What bounds of the scores let the online softmax leave out, and the limits of that.

Let e = score * log2(e) be the exponents, within [a, b], and W = b - a.

*A constant in the maximum's place.* With weights p = 2**(e - b + t), for a constant
t, nothing depends on the row: no maximum, and no rescaling of sums. A row's result
acc / l is the same as with its own maximum m as long as nothing overflows, and
nothing that counts underflows:

- t = 0 where weights have the exponents of the accumulators (bf16 and tf32 have
  those of f32): p <= 1, so |acc| is at most what it is with the row's maximum, for
  whatever values, and l at most the number of keys.
- p >= 2**-W is normal, and has full precision also in a row whose scores all are at
  the lower bound. So must be p * v for a value v that counts beside values of 1, of
  at least the accumulator's rounding, 2**-digits: W <= 126 - 24 = 102 for f32, and
  1022 - 53 = 969 for f64. All of fp16's numbers are that large; a smaller value
  may be off by 2**(W - 126), absolutely.
- fp16 holds weights up to 65504 and gives those below 2**-14 an absolute error of
  2**-25. With a row's own maximum that is relative to a weight of 1. It is here as
  well if the weight of a row's largest score, which is at least 2**(t - W), is at
  least 1: W <= t. t = 15 leaves a factor of 2 below 65504, and in sums of 2**31
  products with values below 2**16, by 2**62, f32 does not overflow.

An exponent near a is rounded to half a unit in the last place of W, which is at most
twice that of the largest |e|: what rounding the scores themselves costs.

Soft-capping by c has W = 2.885 * c: c = 20 (58) and 30 (87) are within 102, 50 (144)
is not, and only fp64 has room for it; fp16 takes c up to 5.19.

*A maximum that starts at the lower bound* is never -inf, in any block, whatever is
masked there: exponents need no guard against it. If besides |a| and |b| are below
2**(digits + 3), neither do they need the power of two (see `online_softmax`).

Constants of up to 2**(digits - 4) are accurate to a 16th of an exponent, and so is
what a factor's rounding adds to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat, Float16Type, TensorType
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.passes.flex.score_factor import Factor
from flexc.passes.scalar.ranges.float_intervals import Format
from flexc.passes.scalar.ranges.float_values import FORMATS

LOG2_E = math.log2(math.e)

F16_HEADROOM = 15
"""t of fp16: the greatest exponent of weights."""


@dataclass(frozen=True)
class SoftmaxFacts:
    """What is known of the rows of one attention op."""

    shift: float | None = None
    """What scores' exponents are shifted by, in place of the row's maximum."""
    least: float | None = None
    """A lower bound of scores over the factor; all are small enough to be exact."""
    never_empty: bool = False
    """Each row has a score that is not -inf."""


def softmax_facts(op: flex.AttentionLike, factor: Factor) -> SoftmaxFacts:
    """What the facts of an op say of the softmax of scores over `factor`."""
    # A row that no mask hides is as empty if all its scores are -inf.
    # And a split of one that is not may have none of its keys.
    full = op.rows_never_empty is not None and op.scores_finite is not None
    full = full and op.splits is None
    if op.score_range is None:
        return SoftmaxFacts(never_empty=full)
    lo, hi = op.score_range.get_values()
    a, b = lo * LOG2_E, hi * LOG2_E
    fmt, size = FORMATS[op.score_type], max(abs(a), abs(b))
    shift = least = None
    if size <= 2.0 ** (fmt.digits - 4) and op.max_scores is None:
        shift = constant_shift(a, b, fmt, weights_type(op))
    if size <= 2.0 ** (fmt.digits + 3) and not factor.has_scale:
        least = lo / factor.constant
    return SoftmaxFacts(shift, least, full)


def constant_shift(a: float, b: float, fmt: Format, weights: Attribute) -> float | None:
    """t - b, if exponents within [a, b] need no maximum."""
    headroom = F16_HEADROOM if isinstance(weights, Float16Type) else 0
    return headroom - b if b - a <= width_limit(fmt, weights) else None


def width_limit(fmt: Format, weights: Attribute) -> float:
    """The greatest W that a constant shift has room for."""
    if isinstance(weights, Float16Type):
        return F16_HEADROOM
    return -fmt.least - fmt.digits


def narrow_scores(op: flex.AttentionLike) -> float:
    """A b, so that scores within [-b, b] need no maximum: the greatest, rounded."""
    limit = width_limit(FORMATS[op.score_type], weights_type(op))
    return math.floor(100 * limit / 2 / LOG2_E) / 100


def weights_type(op: flex.AttentionLike) -> AnyFloat:
    """What weights are rounded to: the type of the values they multiply."""
    assert isa(op.value.type, TensorType[AnyFloat])
    return op.value.type.element_type
