"""Compute the ranges of the float values of a region of scalar code.

`FloatRanges` follows operands up to the region's arguments. Arguments without a known
range may have any value: the score that enters a mod may be infinite or NaN. Integers
that are converted to floats have the ranges of `ValueRanges`.

Elementary functions of a machine have errors of some units in the last place, and `exp`
has larger errors for large arguments. Ranges are widened by a relative error that is
well above the errors of all targets. Limits of a function, such as 1 for tanh, need no
widening: implementations saturate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr, bf16, f16, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.ranges import float_intervals as floats
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.float_intervals import (
    ANY,
    F64,
    ONLY_NAN,
    FloatInterval,
    Format,
    absolute,
    divide,
    multiply,
    negate,
    point,
    round_toward,
    rounded,
    square,
    union,
)
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of

ERROR, ERROR_F64 = 2.0**-16, 2.0**-40
"""The relative errors, of types up to f32 and of f64."""

APPROXIMATE_TANH = 2.0**-10
"""The relative error of a GPU's own tanh, doubled."""

NEAR_ZERO = 2.0**-18
"""The absolute error of functions that are computed by subtraction: a GPU's logarithms
near 1, and tanh by exp2 near 0. No function is computed in this way in f64.
"""


@dataclass(frozen=True)
class Increasing:
    """An increasing function, with its bounds and its domain.

    Arguments outside of `least` .. `greatest` give NaN.
    """

    function: Callable[[float], float]
    at_least: float
    """The lower bound of the function, its value at `least`."""
    at_most: float = inf
    least: float = -inf
    greatest: float = inf
    error: float = ERROR
    absolute_error: float = 0.0

    def __call__(self, a: FloatInterval, fmt: Format) -> FloatInterval:
        nan = a.nan or a.lo < self.least or a.hi > self.greatest
        lo, hi = max(a.lo, self.least), min(a.hi, self.greatest)
        if lo > hi:
            return ONLY_NAN
        low, high = self.at(lo), self.at(hi)
        low, high = low - self.off(low, fmt), high + self.off(high, fmt)
        # inf - inf is NaN, for which max and min return their first operand.
        low, high = max(self.at_least, low), min(self.at_most, high)
        return round_toward(low, high, nan, fmt)

    def off(self, value: float, fmt: Format) -> float:
        """Return the largest error of a machine's result."""
        if fmt == F64:
            return abs(value) * ERROR_F64
        return abs(value) * self.error + self.absolute_error

    def at(self, x: float) -> float:
        """Return the function's value, or its limit."""
        try:
            return self.function(x)
        except ValueError:
            return self.at_least if x == self.least else self.at_most
        except OverflowError:
            return inf if x > 0 else -inf


HALF_PI = math.pi / 2 * (1 + ERROR)

INCREASING: dict[str, Increasing] = {
    "tanh": Increasing(
        math.tanh, -1.0, 1.0, error=APPROXIMATE_TANH, absolute_error=NEAR_ZERO
    ),
    "erf": Increasing(math.erf, -1.0, 1.0),
    "atan": Increasing(math.atan, -HALF_PI, HALF_PI),
    "exp": Increasing(math.exp, 0.0),
    "exp2": Increasing(lambda x: 2.0**x, 0.0),
    "expm1": Increasing(math.expm1, -1.0),
    "log": Increasing(math.log, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log2": Increasing(math.log2, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log10": Increasing(math.log10, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log1p": Increasing(math.log1p, -inf, least=-1.0),
    "sqrt": Increasing(math.sqrt, 0.0, least=0.0),
    "cbrt": Increasing(lambda x: math.copysign(abs(x) ** (1 / 3), x), -inf),
    "sinh": Increasing(math.sinh, -inf),
    "asinh": Increasing(math.asinh, -inf),
    "acosh": Increasing(math.acosh, 0.0, least=1.0),
    "atanh": Increasing(math.atanh, -inf, inf, -1.0, 1.0),
    "asin": Increasing(math.asin, -HALF_PI, HALF_PI, -1.0, 1.0),
}


def rsqrt(a: FloatInterval, fmt: Format) -> FloatInterval:
    root = INCREASING["sqrt"](a, fmt)
    if not root.is_empty and root.lo == 0:
        # The reciprocal root of -0.0 is -inf.
        return FloatInterval(-inf, inf, root.nan)
    return divide(point(1.0, fmt), root, fmt)


def cosh(a: FloatInterval, fmt: Format) -> FloatInterval:
    if a.is_empty:
        return ONLY_NAN
    size = absolute(a)
    return Increasing(math.cosh, 1.0, least=0.0)(size, fmt)


def acos(a: FloatInterval, fmt: Format) -> FloatInterval:
    nan = a.nan or a.lo < -1 or a.hi > 1
    return FloatInterval(0.0, 2 * HALF_PI, nan)


def wave(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range of sine and cosine."""
    return FloatInterval(-1.0, 1.0, a.nan or a.may_be_infinite)


def whole(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range of a number that is rounded to an integer, in any direction."""
    if a.is_empty:
        return a
    lo = a.lo if a.lo == -inf else float(math.floor(min(a.lo, fmt.largest)))
    hi = a.hi if a.hi == inf else float(math.ceil(max(a.hi, -fmt.largest)))
    return rounded(FloatInterval(lo, hi, a.nan), fmt)


def copy_sign(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """Return the range of copysign(a, b). A NaN in b has a sign too."""
    size = absolute(a)
    if b.lo > 0 and not b.nan:
        return size
    if b.hi < 0 and not b.nan:
        return negate(size)
    return union(size, negate(size))


def remainder(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """Return the range of C's fmod, which has the sign of a.

    The absolute value of the result exceeds neither |a| nor |b|.
    """
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    nan = a.nan or b.nan or a.may_be_infinite or 0 in b
    size = b.size
    lo, hi = max(min(a.lo, 0.0), -size), min(max(a.hi, 0.0), size)
    return FloatInterval(lo, hi, nan)


def power(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range of a ** b, wide unless a is not negative or b is 2."""
    if a.is_empty or b.is_empty:
        return ANY
    if b.lo == b.hi == 2:
        return widened(square(a, fmt), fmt)
    if a.lo < 0:
        return ANY
    corners = [_power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if any(math.isnan(c) for c in corners) or (a.lo == 0 and b.lo < 0):
        return replace(FloatInterval(0.0, inf), nan=True)
    lo, hi = min(corners), max(corners)
    if 1 in a:
        lo, hi = min(lo, 1.0), max(hi, 1.0)
    bounds = round_toward(lo, hi, a.nan or b.nan, fmt)
    # Both 1 ** NaN and NaN ** 0 are 1.
    one = [point(1.0, fmt)] if bounds.nan else []
    return widened(union(bounds, *one), fmt)


def _power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        return inf
    except ValueError:
        return math.nan


def widened(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range, widened by the relative error of a machine's functions."""
    error = ERROR_F64 if fmt == F64 else ERROR
    around = FloatInterval(1 - error, 1 + error)
    if a.is_empty:
        return a
    return replace(multiply(a, around, fmt), nan=a.nan)


FORMATS: dict[Attribute, Format] = {
    f16: floats.F16,
    bf16: floats.BF16,
    f32: floats.F32,
    f64: floats.F64,
}

Transfer = Callable[..., FloatInterval]

ROUNDED: dict[type[Operation], Transfer] = {
    arith.AddfOp: floats.add,
    arith.SubfOp: floats.subtract,
    arith.MulfOp: floats.multiply,
    arith.DivfOp: floats.divide,
    arith.TruncFOp: floats.rounded,
    math_dialect.PowFOp: power,
    math_dialect.RsqrtOp: rsqrt,
    math_dialect.CoshOp: cosh,
    math_dialect.AcosOp: acos,
    math_dialect.SinOp: wave,
    math_dialect.CosOp: wave,
    math_dialect.FloorOp: whole,
    math_dialect.CeilOp: whole,
    math_dialect.TruncOp: whole,
    math_dialect.RoundOp: whole,
    math_dialect.RoundEvenOp: whole,
    math_dialect.TanhOp: INCREASING["tanh"],
    math_dialect.ErfOp: INCREASING["erf"],
    math_dialect.AtanOp: INCREASING["atan"],
    math_dialect.ExpOp: INCREASING["exp"],
    math_dialect.Exp2Op: INCREASING["exp2"],
    math_dialect.ExpM1Op: INCREASING["expm1"],
    math_dialect.LogOp: INCREASING["log"],
    math_dialect.Log2Op: INCREASING["log2"],
    math_dialect.Log10Op: INCREASING["log10"],
    math_dialect.Log1pOp: INCREASING["log1p"],
    math_dialect.SqrtOp: INCREASING["sqrt"],
    math_dialect.CbrtOp: INCREASING["cbrt"],
    math_dialect.SinhOp: INCREASING["sinh"],
    math_dialect.AsinhOp: INCREASING["asinh"],
    math_dialect.AcoshOp: INCREASING["acosh"],
    math_dialect.AtanhOp: INCREASING["atanh"],
    math_dialect.AsinOp: INCREASING["asin"],
}
"""Functions of the operands' ranges and the result's format to the result's range."""

EXACT: dict[type[Operation], Transfer] = {
    arith.NegfOp: floats.negate,
    arith.MinimumfOp: floats.minimum,
    arith.MaximumfOp: floats.maximum,
    arith.MinnumfOp: floats.minimum_number,
    arith.MaxnumfOp: floats.maximum_number,
    math_dialect.AbsFOp: floats.absolute,
    math_dialect.CopySignOp: copy_sign,
    flex.FmodOp: remainder,
}
"""Functions of the operands' ranges to the range of a result that is not rounded."""


class FloatRanges:
    """The ranges of the float values of one region, computed on demand."""

    def __init__(self, integers: ValueRanges, known: Mapping[SSAValue, FloatInterval]):
        self.integers = integers
        self._ranges = dict(known)

    def __getitem__(self, value: SSAValue) -> FloatInterval:
        """Return the range of a float."""
        found = self._ranges.get(value)
        if found is None:
            found = self._ranges[value] = self._compute(value)
        return found

    def _compute(self, value: SSAValue) -> FloatInterval:
        op, fmt = value.owner, FORMATS.get(value.type)
        if not isinstance(op, Operation) or fmt is None:
            return ANY
        if isinstance(op, arith.MulfOp) and op.lhs is op.rhs:
            return floats.square(self[op.lhs], fmt)
        if (transfer := ROUNDED.get(type(op))) is not None:
            return transfer(*(self[v] for v in op.operands), fmt)
        if (transfer := EXACT.get(type(op))) is not None:
            return transfer(*(self[v] for v in op.operands))
        return self._compute_other(op, fmt)

    def _compute_other(self, op: Operation, fmt: Format) -> FloatInterval:
        match op:
            case arith.ConstantOp(value=FloatAttr() as attr):
                return floats.point(attr.value.data, fmt)
            case arith.ExtFOp():
                return self[op.input]
            case arith.BitcastOp() if op.input.type == op.result.type:
                return self[op.input]
            case arith.SIToFPOp():
                source = self.integers[op.input]
                return floats.of_integers(source.lo, source.hi, fmt)
            case arith.UIToFPOp():
                width = width_of(op.input.type)
                source = intervals.zero_extend(self.integers[op.input], width)
                return floats.of_integers(source.lo, source.hi, fmt)
            case math_dialect.FmaOp():
                a, b, c = (self[v] for v in op.operands)
                return floats.add(floats.multiply(a, b, fmt), c, fmt)
            case arith.SelectOp():
                return floats.union(*(self[v] for v in self.chosen(op)))
            case _:
                return ANY

    def chosen(self, op: arith.SelectOp) -> tuple[SSAValue, ...]:
        """Return the operands that a select may yield."""
        condition = self.integers[op.cond].constant
        if condition is None:
            return op.lhs, op.rhs
        return (op.lhs if condition else op.rhs,)

    def without_minus_inf(self, value: SSAValue) -> FloatInterval:
        """Return the range of a score among pairs whose score is not -inf.

        A mod that masks yields -inf, by a select or by adding the result of a select.
        """
        op, fmt = value.owner, FORMATS.get(value.type)
        if fmt is None or self[value].hi == -inf:
            return floats.NOTHING
        match op:
            case arith.SelectOp():
                parts = [self.without_minus_inf(v) for v in self.chosen(op)]
                return floats.union(*parts)
            case arith.AddfOp():
                a, b = (self.without_minus_inf(v) for v in op.operands)
                if floats.NOTHING in (a, b):
                    return floats.NOTHING
                return floats.add(a, b, fmt)
            case _:
                return self[value]


def culprit(value: SSAValue, ranges: FloatRanges) -> str:
    """Return a message that names the op or argument without bounds."""
    op = value.owner
    if not isinstance(op, Operation):
        return f"nothing bounds {value.name_hint or 'an argument'}, an argument"
    for operand in op.operands:
        if isinstance(operand.type, AnyFloat) and not ranges[operand].is_finite:
            return culprit(operand, ranges)
    if isinstance(op, arith.ConstantOp):
        return "a constant is not finite"
    if isinstance(op, flex.LoadCaptureOp):
        return f"nothing bounds the values of {op.tensor.name_hint or 'a tensor'}"
    return f"nothing bounds {op.name}"
