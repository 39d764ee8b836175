"""Rules that import rounding, elementary functions and activations as `math`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi
from typing import Any

import torch
from xdsl.dialects import arith, math
from xdsl.ir import Operation

from flexc.dialects.flex.scalar import Ties
from flexc.frontend.aten_to_arith import (
    absolute,
    add,
    clamp,
    clamp_open,
    compute_operands,
    detach,
    div,
    maximum,
    mul,
    neg,
    one_op,
    sub,
)
from flexc.frontend.scalars import Emitter, Rule, Scalar, compute_dtype, number, rule

ONE, ZERO, HALF = number(1.0), number(0.0), number(0.5)
LEAK = number(0.01)

UNARY: dict[str, type[Operation]] = {
    "acos": math.AcosOp,
    "acosh": math.AcoshOp,
    "asin": math.AsinOp,
    "asinh": math.AsinhOp,
    "atan": math.AtanOp,
    "atanh": math.AtanhOp,
    "cos": math.CosOp,
    "cosh": math.CoshOp,
    "erf": math.ErfOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "expm1": math.ExpM1Op,
    "log": math.LogOp,
    "log10": math.Log10Op,
    "log1p": math.Log1pOp,
    "log2": math.Log2Op,
    "rsqrt": math.RsqrtOp,
    "sin": math.SinOp,
    "sinh": math.SinhOp,
    "sqrt": math.SqrtOp,
    "tan": math.TanOp,
    "tanh": math.TanhOp,
}

ROUNDING: dict[str, type[Operation]] = {
    "ceil": math.CeilOp,
    "fix": math.TruncOp,
    "floor": math.FloorOp,
    "trunc": math.TruncOp,
}


def _rounding(op: type[Operation]) -> Any:
    def apply(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
        return e.op(op, out, x) if out.is_floating_point else e.cast(x, out)

    return apply


for _name, _op in UNARY.items():
    rule(_name, f"special_{_name}")(one_op(_op))
for _name, _op in ROUNDING.items():
    rule(_name)(_rounding(_op))


@rule("round")
def _round(
    e: Emitter, out: torch.dtype, x: Scalar, *, decimals: Scalar | None = None
) -> Scalar:
    if not x.dtype.is_floating_point:
        return e.cast(x, out)
    if decimals is None or decimals.const == 0:
        return e.cast(e.op(math.RoundEvenOp, x.dtype, x), out)
    places = int(decimals.const or 0)
    factor = number(float(10 ** abs(places)))
    there, back = (mul, div) if places > 0 else (div, mul)
    return back(e, out, e.op(math.RoundEvenOp, out, there(e, out, x, factor)), factor)


rule("frac")(lambda e, t, x: sub(e, t, x, e.op(math.TruncOp, t, x)))
rule("reciprocal")(lambda e, t, x: div(e, t, ONE, x))
rule("square")(lambda e, t, x: mul(e, t, x, x))
rule("atan2", "arctan2")(one_op(math.Atan2Op))


@rule("hypot")
def _hypot(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    into = compute_dtype(out)
    a, b = compute_operands(e, out, a, b)
    # Scaled by the larger operand, so that squares neither overflow nor underflow. The
    # result does not depend on the scale, so the scale has no derivative.
    scale = maximum(e, into, absolute(e, into, a), absolute(e, into, b))
    scale = detach(e, into, scale)
    ratios = (div(e, into, x, scale) for x in (a, b))
    squares = (mul(e, into, ratio, ratio) for ratio in ratios)
    length = mul(e, into, scale, e.op(math.SqrtOp, into, add(e, into, *squares)))
    plain = e.both(e.compare("gt", scale, ZERO), e.compare("lt", scale, number(inf)))
    return e.cast(e.select(plain, length, scale, into), out)


def _test(on_int: bool, test: Callable[[Emitter, Scalar], Scalar]) -> Rule:
    """Return a rule for a test of floats whose result is constant for integers."""

    def apply(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
        if x.dtype.is_floating_point:
            return test(e, x)
        return e.constant(on_int, torch.bool)

    return apply


def _is_infinite(e: Emitter, x: Scalar) -> Scalar:
    return e.compare("eq", absolute(e, x.dtype, x), number(inf))


def _is_finite(e: Emitter, x: Scalar) -> Scalar:
    return e.compare("lt", absolute(e, x.dtype, x), number(inf))


rule("isnan")(_test(False, lambda e, x: e.compare("ne", x, x)))
rule("isinf")(_test(False, _is_infinite))
rule("isfinite")(_test(True, _is_finite))


@rule("signbit")
def _signbit(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    if x.dtype.is_floating_point:
        x = e.op(math.CopySignOp, x.dtype, ONE, x)
    return e.compare("lt", x, number(0))


@rule("nan_to_num")
def _nan_to_num(
    e: Emitter,
    out: torch.dtype,
    x: Scalar,
    nan: Scalar | None = None,
    posinf: Scalar | None = None,
    neginf: Scalar | None = None,
) -> Scalar:
    if not out.is_floating_point:
        return e.cast(x, out)
    info = torch.finfo(out)
    high = e.compare("eq", x, number(inf))
    low = e.compare("eq", x, number(-inf))
    result = e.select(high, posinf or number(info.max), x, out)
    result = e.select(low, neginf or number(info.min), result, out)
    return e.select(e.compare("ne", x, x), nan or ZERO, result, out)


def _activation(*names: str) -> Any:
    """Register a rule for one floating dtype.

    The argument is cast to the compute dtype, and the result is rounded once, as in
    torch.
    """

    def register(fn: Any) -> Any:
        def apply(
            e: Emitter, out: torch.dtype, x: Scalar, *args: Any, **kw: Any
        ) -> Any:
            (wide,) = compute_operands(e, out, x)
            return e.cast(fn(e, wide.dtype, wide, *args, **kw), out)

        rule(*names)(apply)
        return fn

    return register


def _one_plus_decay(e: Emitter, t: torch.dtype, x: Scalar) -> Scalar:
    """Return `exp(-x) + 1`."""
    return add(e, t, e.op(math.ExpOp, t, neg(e, t, x)), ONE)


_activation("sigmoid", "special_expit")(
    lambda e, t, x: div(e, t, ONE, _one_plus_decay(e, t, x))
)
_activation("silu")(lambda e, t, x: div(e, t, x, _one_plus_decay(e, t, x)))


@_activation("log_sigmoid", "log_sigmoid_forward")
def _log_sigmoid(e: Emitter, t: torch.dtype, x: Scalar) -> Scalar:
    # Selects, because the derivatives of a minimum or an absolute value are wrong at 0.
    below = e.compare("lt", x, ZERO)
    gap = e.select(below, x, neg(e, t, x), t)
    soft = e.op(math.Log1pOp, t, e.op(math.ExpOp, t, gap))
    return sub(e, t, e.select(below, x, ZERO, t), soft)


@_activation("softplus")
def _softplus(
    e: Emitter, t: torch.dtype, x: Scalar, beta: Scalar = ONE, threshold: Any = None
) -> Scalar:
    steep = x if beta.const == 1 else mul(e, t, x, beta)
    soft = e.op(math.Log1pOp, t, e.op(math.ExpOp, t, steep))
    soft = soft if beta.const == 1 else div(e, t, soft, beta)
    return e.select(e.compare("gt", steep, threshold or number(20.0)), x, soft, t)


@_activation("gelu")
def _gelu(
    e: Emitter, t: torch.dtype, x: Scalar, *, approximate: str = "none"
) -> Scalar:
    if approximate == "none":
        bell = e.op(math.ErfOp, t, mul(e, t, x, number(0.5**0.5)))
    else:
        cube = mul(e, t, mul(e, t, x, x), x)
        arg = add(e, t, x, mul(e, t, cube, number(0.044715)))
        bell = e.op(math.TanhOp, t, mul(e, t, arg, number((2 / pi) ** 0.5)))
    return mul(e, t, mul(e, t, x, HALF), add(e, t, bell, ONE))


rule("relu")(lambda e, t, x: maximum(e, t, x, number(0), ties=Ties.RHS))
rule("relu6")(lambda e, t, x: clamp_open(e, t, x, number(0), number(6)))


@_activation("leaky_relu")
def _leaky_relu(
    e: Emitter, t: torch.dtype, x: Scalar, negative_slope: Scalar = LEAK
) -> Scalar:
    return e.select(e.compare("gt", x, ZERO), x, mul(e, t, x, negative_slope), t)


@_activation("elu")
def _elu(
    e: Emitter,
    t: torch.dtype,
    x: Scalar,
    alpha: Scalar = ONE,
    scale: Scalar = ONE,
    input_scale: Scalar = ONE,
) -> Scalar:
    low = e.op(math.ExpM1Op, t, mul(e, t, x, input_scale))
    low = mul(e, t, low, mul(e, t, alpha, scale))
    return e.select(e.compare("gt", x, ZERO), mul(e, t, x, scale), low, t)


@_activation("celu")
def _celu(e: Emitter, t: torch.dtype, x: Scalar, alpha: Scalar = ONE) -> Scalar:
    low = mul(e, t, e.op(math.ExpM1Op, t, div(e, t, x, alpha)), alpha)
    return e.select(e.compare("gt", x, ZERO), x, low, t)


def _gate(e: Emitter, t: torch.dtype, x: Scalar) -> Scalar:
    """Return `x + 3`, clamped to 0 and 6."""
    return clamp_open(e, t, add(e, t, x, number(3.0)), ZERO, number(6.0))


_activation("hardsigmoid")(lambda e, t, x: div(e, t, _gate(e, t, x), number(6)))
_activation("hardswish")(
    lambda e, t, x: div(e, t, mul(e, t, x, _gate(e, t, x)), number(6))
)


@_activation("mish")
def _mish(e: Emitter, t: torch.dtype, x: Scalar) -> Scalar:
    soft = e.op(math.Log1pOp, t, e.op(math.ExpOp, t, x))
    return mul(e, t, x, e.op(math.TanhOp, t, soft))


_activation("erfc", "special_erfc")(
    lambda e, t, x: sub(e, t, ONE, e.op(math.ErfOp, t, x))
)


@_activation("logit")
def _logit(e: Emitter, t: torch.dtype, x: Scalar, eps: Scalar | None = None) -> Scalar:
    if eps is not None:
        x = clamp(e, t, x, eps, sub(e, t, ONE, eps))
    return e.op(math.LogOp, t, div(e, t, x, sub(e, t, ONE, x)))


@_activation("sinc")
def _sinc(e: Emitter, t: torch.dtype, x: Scalar) -> Scalar:
    arg = mul(e, t, x, number(pi))
    ratio = div(e, t, e.op(math.SinOp, t, arg), arg)
    return e.select(e.compare("eq", x, ZERO), ONE, ratio, t)


_activation("deg2rad")(lambda e, t, x: mul(e, t, x, number(pi / 180)))
_activation("rad2deg")(lambda e, t, x: mul(e, t, x, number(180 / pi)))
rule("threshold")(
    lambda e, t, x, threshold, value: e.select(
        e.compare("le", x, threshold), value, x, t
    )
)


@rule("heaviside")
def _heaviside(e: Emitter, out: torch.dtype, x: Scalar, values: Scalar) -> Scalar:
    step = e.cast(e.compare("gt", x, number(0)), out)
    return e.select(e.compare("eq", x, number(0)), values, step, out)


@rule("xlogy", "special_xlogy")
def _xlogy(e: Emitter, out: torch.dtype, x: Scalar, y: Scalar) -> Scalar:
    into = compute_dtype(out)
    x, y = compute_operands(e, out, x, y)
    product = mul(e, into, x, e.op(math.LogOp, into, y))
    # Select 0 only if the product is not 0. The product has the derivative log(y) by x.
    infinite = e.op(
        arith.OrIOp,
        torch.bool,
        e.compare("le", y, ZERO),
        e.compare("eq", y, number(inf)),
    )
    zero = e.both(e.compare("eq", x, ZERO), infinite)
    return e.cast(e.select(zero, ZERO, product, into), out)


@rule("logaddexp")
def _logaddexp(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    into = compute_dtype(out)
    a, b = compute_operands(e, out, a, b)
    # Selects, as in `_log_sigmoid`.
    above = e.compare("gt", a, b)
    difference = sub(e, into, a, b)
    gap = e.select(above, neg(e, into, difference), difference, into)
    soft = e.op(math.Log1pOp, into, e.op(math.ExpOp, into, gap))
    high = e.select(above, a, b, into)
    same = e.both(e.compare("eq", a, b), _is_infinite(e, a))
    return e.cast(e.select(same, a, add(e, into, high, soft), into), out)
