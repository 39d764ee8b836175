"""The online softmax in tile ops: the algorithm, written once for all targets.

For each block of keys (Milakov and Gimelshein, 2018; Dao et al., 2022):

    m     = max(m_i, rowmax(x))
    p     = exp2(x * c - m * c)
    alpha = exp2((m_i - m) * c)
    l     = l_i * alpha + rowsum(p)
    acc   = acc * alpha + p @ v

c turns scores into exponents of 2; one fused multiply-add per score does all
the scaling there is. c is positive, so the maximum may be taken before it. A row
whose maximum is -inf uses 0 in its place: exp2 then sees -inf and never NaN.
alpha is exactly 1 where the maximum stays: a fused m_i * c - m * c would leave
the rounding of m * c, which adds up over the blocks.

So would p, by as much as half the distance of floats at m * c. Where that is
large, as in a row of nothing but the -1e30 that people mask with, a power of two
near c takes its place: m * c is exact, and scores below m have weight 0 by either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, f64
from xdsl.ir import Attribute, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.map_builder import (
    FULL,
    ROW,
    build_map,
    build_row_map,
)
from flexc.passes.scalar_code import ScalarCode

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)


@dataclass
class SoftmaxState:
    """Running maximum and sum of each row, and the weighted sum of values."""

    m_i: SSAValue
    l_i: SSAValue
    acc: SSAValue

    @staticmethod
    def of(values: Sequence[SSAValue]) -> SoftmaxState:
        for value, name in zip(values, ("m_i", "l_i", "acc"), strict=True):
            value.name_hint = name
        return SoftmaxState(*values)

    def values(self) -> list[SSAValue]:
        return [self.m_i, self.l_i, self.acc]


@dataclass(frozen=True)
class OnlineSoftmax:
    """Builds the softmax of rows whose scores have type `score_type`.

    `factor` is c and `power` a power of two near it. `unit` is what turns a maximum
    into natural units (the scale where c took it in), or None where it is in natural
    units already.
    """

    score_type: AnyFloat
    shape: tuple[int, int]
    factor: SSAValue
    power: SSAValue
    unit: SSAValue | None

    def initial(self, code: ScalarCode) -> SoftmaxState:
        rows = TileType(self.score_type, self.shape[:1])
        zero = code.const(0.0, self.score_type)
        minus_inf = code.const(-math.inf, self.score_type)
        return SoftmaxState.of(
            [
                code.insert(tile.FullOp(minus_inf, rows)),
                code.insert(tile.FullOp(zero, rows)),
                code.insert(tile.FullOp(zero, TileType(self.score_type, self.shape))),
            ]
        )

    def update(
        self, code: ScalarCode, state: SoftmaxState, x: SSAValue, v: SSAValue
    ) -> SoftmaxState:
        """Take in the scores of one block of keys and its values."""
        row_max = code.insert(tile.ReduceOp(ReduceKind.MAX, x, 1), "row_max")
        m = build_row_map(code, [state.m_i, row_max], _maximum, "m")
        inputs = [m, self.factor, self.power]
        factor = build_row_map(code, inputs, _factor, "factor")
        shift = build_row_map(code, inputs, _shift, "shift")
        assert isinstance(x.type, TileType)
        p = build_map(
            code,
            x.type.get_shape(),
            [(x, FULL), (factor, ROW), (shift, ROW)],
            _exp2_fma,
            "p",
        )
        alpha = build_row_map(code, [state.m_i, m, self.factor], _rescale, "alpha")
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1), "row_sum")
        l_i = build_row_map(code, [state.l_i, alpha, row_sum], _fma, "l")
        acc = build_map(
            code, self.shape, [(state.acc, FULL), (alpha, ROW)], _mul, "acc_scaled"
        )
        weights = convert(code, p, _element(v))
        acc = code.insert(tile.DotOp(weights, v, acc), "acc_next")
        return SoftmaxState(m, l_i, acc)

    def output(
        self, code: ScalarCode, state: SoftmaxState, element: Attribute
    ) -> SSAValue:
        """acc / l, and 0 for a row with nothing to attend to."""
        inverse = build_row_map(code, [state.l_i], _safe_inverse, "inverse")
        out = build_map(
            code, self.shape, [(state.acc, FULL), (inverse, ROW)], _mul, "o"
        )
        return convert(code, out, element)

    def max_scores(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """The largest score of each row, in natural units."""
        if self.unit is None:
            return state.m_i
        return build_row_map(code, [state.m_i, self.unit], _mul, "max_scores")

    def lse(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """The logarithm of the sum of exponentials, in natural units."""
        maximum = self.max_scores(code, state)
        return build_row_map(code, [maximum, state.l_i], _log_sum, "lse")


def convert(code: ScalarCode, value: SSAValue, element: Attribute) -> SSAValue:
    """Round a tile to a narrower element type."""
    assert isinstance(value.type, TileType)
    assert isinstance(element, AnyFloat)
    if value.type.element_type == element:
        return value

    def body(c: ScalarCode, x: SSAValue) -> SSAValue:
        return c.insert(arith.TruncFOp(x, element))

    name = f"{value.name_hint}_{element}"
    return build_map(code, value.type.get_shape(), [(value, FULL)], body, name)


def _element(value: SSAValue) -> Attribute:
    assert isinstance(value.type, TileType)
    return value.type.element_type


def _maximum(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.MaxnumfOp(a, b))


def _mul(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.MulfOp(a, b))


def _fma(code: ScalarCode, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
    return code.insert(math_dialect.FmaOp(a, b, c))


def _exp2_fma(code: ScalarCode, x: SSAValue, c: SSAValue, shift: SSAValue) -> SSAValue:
    """exp2(x * c + shift)"""
    return code.insert(math_dialect.Exp2Op(_fma(code, x, c, shift)))


def _is_minus_inf(code: ScalarCode, m: SSAValue) -> SSAValue:
    return code.cmpf("oeq", m, code.const(-math.inf, m.type))


def _is_small(code: ScalarCode, product: SSAValue) -> SSAValue:
    """Whether what rounding took from m * c is nothing to an exponent."""
    size = code.insert(math_dialect.AbsFOp(product))
    limit = 2.0**57 if product.type == f64 else 2.0**28
    return code.cmpf("olt", size, code.const(limit, product.type))


def _factor(code: ScalarCode, m: SSAValue, c: SSAValue, power: SSAValue) -> SSAValue:
    """c, or a power of two near it where m * c is large."""
    return code.select(_is_small(code, _mul(code, m, c)), c, power)


def _shift(code: ScalarCode, m: SSAValue, c: SSAValue, power: SSAValue) -> SSAValue:
    """-m times the factor, and 0 for m = -inf.

    Both products are formed at once: scores wait for this.
    """
    product = _mul(code, m, c)
    exact = code.insert(arith.NegfOp(_mul(code, m, power)))
    exact = code.select(_is_minus_inf(code, m), code.const(0.0, m.type), exact)
    negated = code.insert(arith.NegfOp(product))
    return code.select(_is_small(code, product), negated, exact)


def _rescale(code: ScalarCode, m_i: SSAValue, m: SSAValue, c: SSAValue) -> SSAValue:
    """exp2((m_i - m) * c), and 0 while there is no maximum."""
    finite = code.select(_is_minus_inf(code, m), code.const(0.0, m.type), m)
    difference = code.insert(arith.SubfOp(m_i, finite))
    return code.insert(math_dialect.Exp2Op(_mul(code, difference, c)))


def _safe_inverse(code: ScalarCode, l_i: SSAValue) -> SSAValue:
    one = code.const(1.0, l_i.type)
    empty = code.cmpf("oeq", l_i, code.const(0.0, l_i.type))
    return code.insert(arith.DivfOp(one, code.select(empty, one, l_i)))


def _log_sum(code: ScalarCode, maximum: SSAValue, l_i: SSAValue) -> SSAValue:
    return code.insert(arith.AddfOp(maximum, code.insert(math_dialect.LogOp(l_i))))
