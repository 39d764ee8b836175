"""Rewrites and bounds of scores that save work in the online softmax.

`factor_score` takes a positive factor out of the scores. softmax(f * x) needs f only
where x becomes an exponent: for every f > 0, the maximum of f * x is f times the
maximum of x. A score region that yields f * x, with f uniform and known to be positive,
may therefore yield x. f becomes part of the fused multiply-add that the online softmax
runs for each score in any case:

- the score itself is scale * (q . k): plain attention multiplies nothing else;
- a constant factor, as in c * tanh(x / c), costs nothing;
- f * x + l * z, with l of lower rank than z, is f * (x + (l / f) * z);
- the scale is combined with a constant within tanh. tanh is as good as 1 before either
  form of the product overflows.

In floating point, x differs from f * x / f only by roundings of relative size 2^-24. If
f * x or a part of f * x is infinite, so is the score. A `Factor` has a limit for x
beyond which the score is infinite. A term that is added to f * x must be bounded, so
that it cannot make an infinite score finite.

`softmax_facts` derives from bounds of the scores which steps the online softmax may
leave out. Let e = score * log2(e) be the exponents, within [a, b], and W = b - a.

*A constant in place of the maximum.* With weights p = 2**(e - b + t), for a constant t,
nothing depends on the row: there is no maximum, and sums are not rescaled. The result
acc / l of a row is the same as with the row's own maximum m if nothing overflows and no
weight that matters underflows:

- t = 0 if weights have the exponents of the accumulators (bf16 and tf32 have those of
  f32). p <= 1, so |acc| is at most as large as with the row's maximum, for any values,
  and l is at most the number of keys.
- p >= 2**-W is normal, and has full precision even in a row whose scores are all at the
  lower bound. The same must hold for p * v, for a value v that matters next to values
  of 1, that is, v of at least the accumulator's rounding, 2**-digits: W <= 126 - 24 =
  102 for f32, and 1022 - 53 = 969 for f64. All numbers of fp16 are that large; smaller
  values may have an absolute error of 2**(W - 126).
- fp16 holds weights up to 65504 and gives weights below 2**-14 an absolute error of
  2**-25. With a row's own maximum the largest weight is 1, and that error is
  acceptable. With a constant the same holds if the weight of a row's largest score,
  which is at least 2**(t - W), is at least 1: W <= t. t = 15 leaves a factor of 2 below
  65504. Sums of 2**31 products with values below 2**16 are below 2**62, so f32 does not
  overflow.

An exponent near a is rounded to half a unit in the last place of W, which is at most
twice the rounding of the largest |e|: the scores themselves have errors of that size.

Soft-capping by c has W = 2.885 * c. c = 20 (58) and 30 (87) are within 102. 50 (144) is
not; only fp64 has room for it. fp16 takes c up to 5.19.

*A maximum that starts at the lower bound* is never -inf in any block, even if all pairs
are masked: exponents need no guard against -inf. If |a| and |b| are below 2**(digits +
3) too, exponents do not need the power of two (see `online_softmax`).

Constants of up to 2**(digits - 4) are accurate to a 16th of an exponent, and so is the
rounding of a factor that is added to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, Float16Type
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex
from flexc.dialects.constants import float_constant
from flexc.dialects.mod_region import yielded
from flexc.passes.scalar.ranges.float_intervals import Format
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.scalar.variation import Variation
from flexc.passes.tile.map_builder import COLUMN, FULL, ROW, UNIFORM

SAFE_FACTORS = (2.0**-30, 2.0**30)
"""Bounds of a constant factor, and of a constant within tanh, that may be taken out."""

LARGEST_TERM = 2.0**40
"""The largest term, added to scores, that may be divided by a factor.

The least factor is 2^-60. Divided by this factor, the term is less than half a unit in
the last place of the largest float: a score that overflows with such a term also
overflows without the term.
"""

SPANS = (FULL, UNIFORM, UNIFORM, UNIFORM, ROW, COLUMN)
"""The dimensions along which arguments of a `FactoredScore` vary.

The arguments are raw, scale, b, h, q_idx and kv_idx.
"""


def score_variation(block: Block) -> Variation[frozenset[int]]:
    """Return the dimensions that the values of a factored score vary along."""
    known = zip(block.args, map(frozenset, SPANS), strict=False)
    return Variation(dict(known), frozenset())


@dataclass(frozen=True)
class Factor:
    """A factor of all scores: `constant`, or `constant * scale`.

    `peak` is the largest product of constants that the score mod computes on the way,
    without the scale. A score is infinite if |x| times `peak` overflows.
    """

    constant: float = 1.0
    has_scale: bool = False
    peak: float = 1.0

    def times(self, constant: float) -> Factor | None:
        """Return the product; None if it is outside of `SAFE_FACTORS`."""
        product = self.constant * constant
        if not SAFE_FACTORS[0] < product < SAFE_FACTORS[1]:
            return None
        return replace(self, constant=product, peak=max(self.peak, product))

    @property
    def units(self) -> tuple[float, float]:
        """The peak, and the constant divided by the peak.

        Multiplied by these one after another, a value overflows if any of the score
        mod's products does.
        """
        return self.peak, self.constant / self.peak

    @property
    def is_one(self) -> bool:
        return self.constant == 1.0 and not self.has_scale


@dataclass(frozen=True)
class FactoredScore:
    """A score region that yields scores divided by `factor`.

    The region takes the raw score (q . k), the scale, and a mod's arguments.
    """

    region: Region
    factor: Factor

    @property
    def is_raw(self) -> bool:
        """True if the region yields the raw score unchanged."""
        return yielded(self.region.block)[0] is self.region.block.args[0]


def factor_score(
    score_mod: Region, score_type: AnyFloat, scale_positive: bool, max_length: int
) -> FactoredScore:
    """Take the factor out of a score region; positions are below `max_length`."""
    mod_args = score_mod.block.args[1:]
    types: list[Attribute] = [score_type, score_type, *(a.type for a in mod_args)]
    block = Block(arg_types=types)
    for arg, old in zip(block.args[2:], mod_args, strict=True):
        arg.name_hint = old.name_hint
    raw, scale, *rest = block.args
    raw.name_hint, scale.name_hint = "raw", "scale"
    code = ScalarCode(block)
    score = code.mulf(raw, scale, "score")
    (value,) = inline_region(score_mod, [score, *rest], code)
    extractor = Extractor(code, block, scale_positive, max_length)
    if scale_positive:
        join_factors(block)
    factor, value = extractor.extract(value)
    code.yield_(value)
    return FactoredScore(Region(block), factor)


def join_factors(block: Block) -> None:
    """Rewrite tanh((raw * scale) / c) to tanh(raw * (scale / c)), for constants c."""
    raw, scale = block.args[:2]
    for op in list(block.ops):
        inner = op.operands[0].owner if isinstance(op, math_dialect.TanhOp) else None
        if not isinstance(inner, arith.MulfOp | arith.DivfOp):
            continue
        constant, score = float_constant(inner.rhs), inner.lhs.owner
        if constant is None or not SAFE_FACTORS[0] < abs(constant) < SAFE_FACTORS[1]:
            continue
        if isinstance(score, arith.MulfOp) and set(score.operands) == {raw, scale}:
            before = ScalarCode(InsertPoint.before(op))
            factor = before.insert(type(inner)(scale, inner.rhs), "factor")
            op.operands[0] = before.insert(arith.MulfOp(raw, factor))


class Extractor:
    """A rewriter that splits values of a score region into a factor and the rest."""

    def __init__(
        self, code: ScalarCode, block: Block, scale_positive: bool, max_length: int
    ):
        self.code = code
        self.scale = block.args[1]
        self.scale_positive = scale_positive
        position = Interval(0, max_length - 1)
        indices = zip(block.args[2:], (INDEX, INDEX, position, position), strict=False)
        self.ranges = FloatRanges(ValueRanges(dict(indices)), {})
        self.spans = score_variation(block)

    def extract(self, value: SSAValue) -> tuple[Factor, SSAValue]:
        """Return f and x with value = f * x, such that computing x costs no more."""
        owner = value.owner
        if isinstance(owner, arith.MulfOp):
            return self.extract_product(value, owner)
        if isinstance(owner, arith.AddfOp):
            return self.extract_sum(value, owner)
        return Factor(), value

    def extract_product(
        self, value: SSAValue, op: arith.MulfOp
    ) -> tuple[Factor, SSAValue]:
        for x, u in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if u is self.scale and self.scale_positive:
                return Factor(has_scale=True), x
            constant = float_constant(u)
            if constant is None or not SAFE_FACTORS[0] < constant < SAFE_FACTORS[1]:
                continue
            factor, rest = self.extract(x)
            product = factor.times(constant)
            if product is None:
                product, rest = Factor().times(constant), x
            assert product is not None
            return product, rest
        return Factor(), value

    def extract_sum(self, value: SSAValue, op: arith.AddfOp) -> tuple[Factor, SSAValue]:
        for a, b in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            factor, x = self.extract(a)
            if factor.is_one:
                continue
            term = self.divided(b, factor)
            if term is not None:
                return factor, self.code.addf(x, term)
        return Factor(), value

    def divided(self, value: SSAValue, factor: Factor) -> SSAValue | None:
        """Return value / factor if that saves a product for each pair, else None."""
        owner = value.owner
        if not isinstance(owner, arith.MulfOp):
            return None
        if not self.ranges[value].size <= LARGEST_TERM:
            return None
        for low, z in ((owner.lhs, owner.rhs), (owner.rhs, owner.lhs)):
            if self.spans[low] < self.spans[z] == frozenset(FULL):
                return self.code.mulf(self.divide(low, factor), z)
        return None

    def divide(self, value: SSAValue, factor: Factor) -> SSAValue:
        divisor = self.code.const(factor.constant, value.type)
        if factor.has_scale:
            divisor = self.code.mulf(self.scale, divisor)
        return self.code.divf(value, divisor)


LOG2_E = math.log2(math.e)

F16_HEADROOM = 15
"""The constant t for fp16: the greatest exponent of weights."""


@dataclass(frozen=True)
class SoftmaxFacts:
    """Facts about the rows of one attention op."""

    shift: float | None = None
    """The constant shift of the exponents, which replaces the row's maximum."""
    least: float | None = None
    """The lower bound of scores divided by the factor.

    None unless all scores are exact enough as exponents.
    """
    never_empty: bool = False
    """True if each row has a score that is not -inf."""


def softmax_facts(op: flex.AttentionLike, factor: Factor) -> SoftmaxFacts:
    """Return the facts about the softmax of scores that are divided by `factor`."""
    # A row with visible keys is still empty if all its scores are -inf, and a split of
    # a row may hold no visible key.
    full = op.rows_never_empty is not None and op.scores_finite is not None
    full = full and op.splits is None
    if op.score_range is None:
        return SoftmaxFacts(never_empty=full)
    lo, hi = op.score_range.bounds
    a, b = lo * LOG2_E, hi * LOG2_E
    fmt, size = FORMATS[op.score_type], max(abs(a), abs(b))
    shift = least = None
    if size <= 2.0 ** (fmt.digits - 4) and op.max_scores is None:
        shift = constant_shift(a, b, fmt, weights_type(op))
    if size <= 2.0 ** (fmt.digits + 3) and not factor.has_scale:
        least = lo / factor.constant
    return SoftmaxFacts(shift, least, full)


def constant_shift(a: float, b: float, fmt: Format, weights: Attribute) -> float | None:
    """Return t - b if exponents within [a, b] need no maximum, else None."""
    headroom = F16_HEADROOM if isinstance(weights, Float16Type) else 0
    return headroom - b if b - a <= width_limit(fmt, weights) else None


def width_limit(fmt: Format, weights: Attribute) -> float:
    """Return the greatest W for which a constant shift is exact enough."""
    if isinstance(weights, Float16Type):
        return F16_HEADROOM
    return -fmt.least - fmt.digits


def narrow_scores(op: flex.AttentionLike) -> float:
    """Return the greatest b, cut to 0.01, so that scores in [-b, b] need no maximum."""
    limit = width_limit(FORMATS[op.score_type], weights_type(op))
    return math.floor(100 * limit / 2 / LOG2_E) / 100


def weights_type(op: flex.AttentionLike) -> Attribute:
    """Return the type to which weights are rounded, that of the query.

    Narrow values are widened to it.
    """
    return flex.element_type(op.query)
