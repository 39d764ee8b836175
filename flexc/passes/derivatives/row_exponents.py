"""Probabilities from scores and a rounded log-sum-exp, exactly.

    p = exp(x - L) = exp2(x * f + t) * w,   L = lse + rest

f, t and w are numbers of a row, so a pair costs one fused multiply-add. f is log2(e)
and t is -lse * f, rounded: by how much, w knows. Where that product is so large that
its rounding is more than a few exponents, as in a row of nothing but the -1e30 that
people mask with, f is 1: x and lse are then so far apart, or equal, that p is 0, or w,
by either. w also has what lse lost when it was rounded: in such a row, all of log(n).

w multiplies rows of cotangents, not pairs (see `flex.weigh_rows`).
"""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from flexc.passes.scalar_code import ScalarCode
from flexc.passes.softmax_facts import LOG2_E


def probability(code: ScalarCode, x: SSAValue, lse: SSAValue) -> SSAValue:
    """exp2(x * f + t); 0 for a score of -inf in a row of nothing else."""
    product, is_small = _product(code, lse)
    one = code.const(1.0, lse.type)
    factor = code.select(is_small, code.const(LOG2_E, lse.type), one)
    shift = code.select(is_small, product, lse)
    shift = code.insert(arith.NegfOp(shift))
    zero = code.const(0.0, lse.type)
    shift = code.select(_is_empty(code, lse), zero, shift)
    exponent = code.insert(math_dialect.FmaOp(x, factor, shift))
    return code.insert(math_dialect.Exp2Op(exponent), "p")


def row_weight(code: ScalarCode, lse: SSAValue, rest: SSAValue) -> SSAValue:
    """w; 0 for a row without pairs."""
    factor = code.const(LOG2_E, lse.type)
    product, is_small = _product(code, lse)
    negated = code.insert(arith.NegfOp(product))
    lost = code.insert(math_dialect.FmaOp(lse, factor, negated))
    zero = code.const(0.0, lse.type)
    lost = code.select(is_small, lost, zero)
    lost = code.insert(math_dialect.FmaOp(rest, factor, lost))
    weight = code.insert(math_dialect.Exp2Op(code.insert(arith.NegfOp(lost))))
    return code.select(_is_empty(code, lse), zero, weight)


def _product(code: ScalarCode, lse: SSAValue) -> tuple[SSAValue, SSAValue]:
    """lse * log2(e), and whether its rounding is a few exponents at most."""
    product = arith.MulfOp(lse, code.const(LOG2_E, lse.type))
    code.insert(product)
    size = code.insert(math_dialect.AbsFOp(product.result))
    limit = 2.0**54 if lse.type == f64 else 2.0**25
    return product.result, code.cmpf("olt", size, code.const(limit, lse.type))


def _is_empty(code: ScalarCode, lse: SSAValue) -> SSAValue:
    return code.cmpf("oeq", lse, code.const(-math.inf, lse.type))
