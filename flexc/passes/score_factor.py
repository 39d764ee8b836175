"""Taking a positive factor out of the scores.

softmax(f * x) needs f only where x becomes an exponent: the maximum of f * x is f
times that of x for every f > 0. So a score region that yields f * x, with f
uniform and known to be positive, may yield x, and f goes into the one fused
multiply-add that the online softmax does for each score anyhow:

- the score itself is scale * (q . k): plain attention multiplies nothing else;
- a constant factor, as in c * tanh(x / c), costs nothing;
- f * x + l * z, with l of lower rank than z, is f * (x + (l / f) * z).

In floating point, x differs from f * x / f by roundings of relative size 2^-24.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import flex
from flexc.passes.map_builder import COLUMN, FULL, ROW, UNIFORM
from flexc.passes.scalar_code import ScalarCode, inline_region

SAFE_FACTORS = (1e-20, 1e20)
"""Constants outside of this stay where they are, for fear of overflow."""

MOD_SPANS = (UNIFORM, UNIFORM, ROW, COLUMN)
"""What (b, h, q_idx, kv_idx) vary along."""


@dataclass(frozen=True)
class Factor:
    """constant, or constant * scale."""

    constant: float = 1.0
    has_scale: bool = False

    def times(self, constant: float) -> Factor:
        return replace(self, constant=self.constant * constant)

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
    score_mod: Region, score_type: AnyFloat, scale_positive: bool
) -> FactoredScore:
    """Take out of a score region what factor there is."""
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
    extractor = Extractor(code, block, scale_positive)
    factor, value = extractor.extract(value)
    code.yield_(value)
    return FactoredScore(Region(block), factor)


class Extractor:
    """Splits values of a score region into factor and rest."""

    def __init__(self, code: ScalarCode, block: Block, scale_positive: bool):
        self.code = code
        self.scale = block.args[1]
        self.scale_positive = scale_positive
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
            if constant and SAFE_FACTORS[0] < constant < SAFE_FACTORS[1]:
                factor, rest = self.extract(x)
                return factor.times(constant), rest
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
        """value / factor, if the division happens at lower rank than the value."""
        owner = value.owner
        if self.span(value) < frozenset(FULL):
            return self.divide(value, factor)
        if not isinstance(owner, arith.MulfOp):
            return None
        for low, z in ((owner.lhs, owner.rhs), (owner.rhs, owner.lhs)):
            if self.span(low) < self.span(z):
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
