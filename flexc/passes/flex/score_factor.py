"""Taking a positive factor out of the scores.

softmax(f * x) needs f only where x becomes an exponent: the maximum of f * x is f
times that of x for every f > 0. So a score region that yields f * x, with f
uniform and known to be positive, may yield x, and f goes into the one fused
multiply-add that the online softmax does for each score anyhow:

- the score itself is scale * (q . k): plain attention multiplies nothing else;
- a constant factor, as in c * tanh(x / c), costs nothing;
- f * x + l * z, with l of lower rank than z, is f * (x + (l / f) * z);
- the scale joins a constant within tanh, which is as good as 1 before the product with
  either overflows.

In floating point, x differs from f * x / f by roundings of relative size 2^-24. That
is all it may differ by: where f * x or a part of it is infinite, so is the score. A
`Factor` knows of a limit for x, beyond which the score is infinite; and what is added
to f * x has to be bounded, so that it makes nothing of that finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex
from flexc.passes.flex.flex_simplify_mods import INDEX
from flexc.passes.scalar.ranges.float_values import FloatRanges
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
)

SAFE_FACTORS = (2.0**-30, 2.0**30)
"""A scale, or a product of constants, outside of this stays where it is."""

LARGEST_TERM = 2.0**40
"""What is added to scores and divided by a factor is at most this.

Over the least factor, 2^-60, it is less than half a unit in the last place of the
largest number: where a score overflows with such a term, it does without it.
"""

MOD_SPANS = (UNIFORM, UNIFORM, ROW, COLUMN)
"""What (b, h, q_idx, kv_idx) vary along."""


@dataclass(frozen=True)
class Factor:
    """constant, or constant * scale.

    The score was computed one factor after another; `peak` is the largest of the
    products on the way, the scale apart. Where |x| times that overflows the score is
    infinite.
    """

    constant: float = 1.0
    has_scale: bool = False
    peak: float = 1.0

    def times(self, constant: float) -> Factor | None:
        """None if the product is not safe."""
        product = self.constant * constant
        if not SAFE_FACTORS[0] < product < SAFE_FACTORS[1]:
            return None
        return replace(self, constant=product, peak=max(self.peak, product))

    @property
    def units(self) -> tuple[float, float]:
        """Factors of the constant; a product with the first overflows if any does."""
        return self.peak, self.constant / self.peak

    @property
    def is_one(self) -> bool:
        return self.constant == 1.0 and not self.has_scale


@dataclass(frozen=True)
class FactoredScore:
    """A score region that yields scores over `factor`.

    The region takes the raw score (q . k), the scale, and a mod's arguments.
    """

    region: Region
    factor: Factor

    @property
    def is_raw(self) -> bool:
        """Whether the region yields the raw score: there is nothing to do."""
        last = self.region.block.last_op
        assert isinstance(last, flex.YieldOp)
        return last.values[0] is self.region.block.args[0]


def factor_score(
    score_mod: Region, score_type: AnyFloat, scale_positive: bool, max_length: int
) -> FactoredScore:
    """Take out of a score region what factor there is.

    Positions are below `max_length`.
    """
    mod_args = score_mod.block.args[1:]
    types: list[Attribute] = [score_type, score_type, *(a.type for a in mod_args)]
    block = Block(arg_types=types)
    for arg, old in zip(block.args[2:], mod_args, strict=True):
        arg.name_hint = old.name_hint
    raw, scale, *rest = block.args
    raw.name_hint, scale.name_hint = "raw", "scale"
    code = ScalarCode(block)
    score = code.insert(arith.MulfOp(raw, scale), "score")
    (value,) = inline_region(score_mod, [score, *rest], code)
    extractor = Extractor(code, block, scale_positive, max_length)
    if scale_positive:
        join_factors(block)
    factor, value = extractor.extract(value)
    code.yield_(value)
    return FactoredScore(Region(block), factor)


def join_factors(block: Block) -> None:
    """tanh((raw * scale) / c) -> tanh(raw * (scale / c)), for constants c."""
    raw, scale = block.args[:2]
    for op in list(block.ops):
        inner = op.operands[0].owner if isinstance(op, math_dialect.TanhOp) else None
        if not isinstance(inner, arith.MulfOp | arith.DivfOp):
            continue
        constant, score = constant_of(inner.rhs), inner.lhs.owner
        if constant is None or not SAFE_FACTORS[0] < abs(constant) < SAFE_FACTORS[1]:
            continue
        if isinstance(score, arith.MulfOp) and set(score.operands) == {raw, scale}:
            before = ScalarCode(InsertPoint.before(op))
            factor = before.insert(type(inner)(scale, inner.rhs), "factor")
            op.operands[0] = before.insert(arith.MulfOp(raw, factor))


class Extractor:
    """Splits values of a score region into factor and rest."""

    def __init__(
        self, code: ScalarCode, block: Block, scale_positive: bool, max_length: int
    ):
        self.code = code
        self.scale = block.args[1]
        self.scale_positive = scale_positive
        position = Interval(0, max_length - 1)
        indices = zip(block.args[2:], (INDEX, INDEX, position, position), strict=False)
        self.ranges = FloatRanges(ValueRanges(dict(indices)), {})
        spans: Sequence[Sequence[int]] = (FULL, UNIFORM, *MOD_SPANS)
        rest = len(block.args) - len(spans)
        self.spans: dict[SSAValue, frozenset[int]] = {
            arg: frozenset(span)
            for arg, span in zip(block.args, [*spans, *[UNIFORM] * rest], strict=True)
        }

    def span(self, value: SSAValue) -> frozenset[int]:
        """What a value varies along."""
        if value not in self.spans:
            owner = value.owner
            assert not isinstance(owner, Block)
            parts = (self.span(v) for v in owner.operands)
            self.spans[value] = frozenset[int]().union(*parts)
        return self.spans[value]

    def extract(self, value: SSAValue) -> tuple[Factor, SSAValue]:
        """f and x with value = f * x, where computing x costs no more."""
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
            constant = constant_of(u)
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
                return factor, self.code.insert(arith.AddfOp(x, term))
        return Factor(), value

    def divided(self, value: SSAValue, factor: Factor) -> SSAValue | None:
        """value / factor, where that saves a product for each pair."""
        owner = value.owner
        if not isinstance(owner, arith.MulfOp):
            return None
        if not self.ranges[value].size <= LARGEST_TERM:
            return None
        for low, z in ((owner.lhs, owner.rhs), (owner.rhs, owner.lhs)):
            if self.span(low) < self.span(z) == frozenset(FULL):
                return self.code.insert(arith.MulfOp(self.divide(low, factor), z))
        return None

    def divide(self, value: SSAValue, factor: Factor) -> SSAValue:
        divisor = self.code.const(factor.constant, value.type)
        if factor.has_scale:
            divisor = self.code.insert(arith.MulfOp(self.scale, divisor))
        return self.code.insert(arith.DivfOp(value, divisor))


def constant_of(value: SSAValue) -> float | None:
    """The value of a float constant."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, FloatAttr):
        return owner.value.value.data
    return None
