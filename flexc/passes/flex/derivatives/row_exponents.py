"""Probabilities from scores and a rounded log-sum-exp.

    p = exp(x - L),   L = lse + rest,   rest is what lse lost when it was rounded

Two forms, of one and of two operations for each pair beside the exponential:

- `fused`: exp2(x * c - lse * c). The product of the row is rounded, by up to
  |lse| * 2^-24 in f32, as the scores themselves are: where they are dot products, that
  is no loss. Where it is more than a few exponents, it is subtracted once more, so that
  nothing overflows.
- `weighed`: exp2((x - lse) * c), times a weight w = exp(-rest) of the row. Scores that
  a mod adds large numbers to, as the -1e30 that people mask with, may be equal, and p
  is then 1/n, of which lse has nothing left: w has it. It multiplies rows of
  cotangents, not pairs (see `flex.weigh_rows`).

In a row with an infinite score, as in one with NaN, p is NaN: its softmax is.
"""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from flexc.passes.flex.softmax_facts import LOG2_E
from flexc.passes.scalar.scalar_code import ScalarCode


def fused_probability(code: ScalarCode, x: SSAValue, lse: SSAValue) -> SSAValue:
    """exp2(x * c - lse * c); 0 for a score of -inf in a row of nothing else."""
    lse = _shift(code, lse)
    factor = code.const(LOG2_E, lse.type)
    product = code.insert(arith.MulfOp(lse, factor))
    size = code.insert(math_dialect.AbsFOp(product))
    digits = 53 if lse.type == f64 else 24
    limit, ulp = 2.0 ** (digits - 2), 2.0 ** (2 - digits)
    more = code.insert(math_dialect.FmaOp(size, code.const(ulp, lse.type), product))
    is_small = code.cmpf("olt", size, code.const(limit, lse.type))
    shift = code.insert(arith.NegfOp(code.select(is_small, product, more)))
    exponent = code.insert(math_dialect.FmaOp(x, factor, shift))
    return code.insert(math_dialect.Exp2Op(exponent), "p")


def weighed_probability(code: ScalarCode, x: SSAValue, lse: SSAValue) -> SSAValue:
    """exp2((x - lse) * c); 0 for a score of -inf in a row of nothing else."""
    difference = code.insert(arith.SubfOp(x, _shift(code, lse)))
    factor = code.const(LOG2_E, lse.type)
    exponent = code.insert(arith.MulfOp(difference, factor))
    return code.insert(math_dialect.Exp2Op(exponent), "p")


def row_weight(code: ScalarCode, lse: SSAValue, rest: SSAValue) -> SSAValue:
    """exp(-rest); 0 for a row without pairs."""
    factor = code.const(-LOG2_E, lse.type)
    exponent = code.insert(arith.MulfOp(rest, factor))
    weight = code.insert(math_dialect.Exp2Op(exponent))
    return code.select(_is_empty(code, lse), code.const(0.0, lse.type), weight)


def _shift(code: ScalarCode, lse: SSAValue) -> SSAValue:
    """lse; 0 in place of -inf, and NaN in place of inf."""
    shift = code.select(_is_empty(code, lse), code.const(0.0, lse.type), lse)
    is_infinite = code.cmpf("oeq", lse, code.const(math.inf, lse.type))
    return code.select(is_infinite, code.const(math.nan, lse.type), shift)


def _is_empty(code: ScalarCode, lse: SSAValue) -> SSAValue:
    return code.cmpf("oeq", lse, code.const(-math.inf, lse.type))
