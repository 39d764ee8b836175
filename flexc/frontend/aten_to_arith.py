"""Rules that import arithmetic, comparisons, logic and casts as `arith`."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects import arith, math

from flexc.dialects.flex import FmodOp
from flexc.dialects.flex.scalar import Ties
from flexc.errors import UnsupportedOpError
from flexc.frontend.scalars import Emitter, Rule, Scalar, compute_dtype, number, rule

ONE, MINUS_ONE = number(1), number(-1)


def op_for(
    dtype: torch.dtype,
    on_float: Any,
    signed: Any = None,
    unsigned: Any = None,
    on_bool: Any = None,
) -> Any:
    """Return the op for the kind of a dtype. By default, integers share one."""
    if dtype.is_floating_point:
        return on_float
    if dtype is torch.bool and on_bool:
        return on_bool
    return signed if dtype.is_signed else unsigned or signed


def one_op(*ops: Any) -> Rule:
    """Return a rule that is one op. `ops` are alternatives, as in `op_for`."""

    def apply(
        e: Emitter, out: torch.dtype, *args: Scalar, ties: Ties = Ties.HALVES
    ) -> Scalar:
        return e.op(op_for(out, *ops), out, *args, ties=ties)

    return apply


def compute_operands(e: Emitter, dtype: torch.dtype, *xs: Scalar) -> list[Scalar]:
    """Cast arguments to a dtype's compute dtype, after rounding tensors to the dtype.

    A Python number is not rounded to a half dtype, as in torch's kernels.
    """
    if not dtype.is_floating_point:
        return e.together(dtype, *xs)
    into = compute_dtype(dtype)
    return [e.cast(x if x.weak else e.cast(x, dtype), into) for x in xs]


def _arithmetic(*ops: Any) -> Rule:
    """Return a rule like that of `one_op`, rounded once."""

    def apply(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
        result = e.op(
            op_for(out, *ops), compute_dtype(out), *compute_operands(e, out, a, b)
        )
        return e.cast(result, out)

    return apply


add = _arithmetic(arith.AddfOp, arith.AddiOp, None, arith.OrIOp)
sub = _arithmetic(arith.SubfOp, arith.SubiOp)
mul = rule("mul")(_arithmetic(arith.MulfOp, arith.MuliOp, None, arith.AndIOp))
div = _arithmetic(arith.DivfOp)

rule("add")(lambda e, t, a, b, *, alpha=ONE: add(e, t, a, scaled(e, t, b, alpha)))
rule("sub")(lambda e, t, a, b, *, alpha=ONE: sub(e, t, a, scaled(e, t, b, alpha)))
rule("rsub")(lambda e, t, a, b, alpha=ONE: sub(e, t, b, scaled(e, t, a, alpha)))


def scaled(e: Emitter, out: torch.dtype, x: Scalar, by: Scalar) -> Scalar:
    """Return `x * by`, without rounding to a half type."""
    if by.const == 1:
        return x
    into = compute_dtype(out)
    return mul(e, into, e.cast(x, into), by)


@rule("div", "true_divide")
def _div(
    e: Emitter,
    out: torch.dtype,
    a: Scalar,
    b: Scalar,
    *,
    rounding_mode: str | None = None,
) -> Scalar:
    if rounding_mode is None:
        return div(e, out, a, b)
    if rounding_mode == "floor":
        return floor_divide(e, out, a, b)
    if not out.is_floating_point:
        return e.op(op_for(out, None, arith.DivSIOp, arith.DivUIOp), out, a, b)
    into = compute_dtype(out)
    return e.cast(
        e.op(math.TruncOp, into, div(e, into, *compute_operands(e, out, a, b))), out
    )


@rule("floor_divide")
def floor_divide(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    if not out.is_floating_point:
        op = op_for(out, None, arith.FloorDivSIOp, arith.DivUIOp)
        return e.op(op, out, a, b)
    # The algorithm of c10::div_floor_floating: right if a / b rounds up to an integer.
    into = compute_dtype(out)
    a, b = compute_operands(e, out, a, b)
    mod = e.op(FmodOp, into, a, b)
    quotient = div(e, into, sub(e, into, a, mod), b)
    lower = sub(e, into, quotient, number(1.0))
    quotient = e.select(_signs_differ(e, mod, b), lower, quotient, into)
    floor = e.op(math.FloorOp, into, quotient)
    too_low = e.compare("gt", sub(e, into, quotient, floor), number(0.5))
    floor = e.select(too_low, add(e, into, floor, number(1.0)), floor, into)
    plain = div(e, into, a, b)
    zero = e.op(math.CopySignOp, into, number(0.0), plain)
    floor = e.select(e.compare("ne", quotient, number(0.0)), floor, zero, into)
    by_zero = e.compare("eq", b, number(0.0))
    plain = detach(e, into, plain)
    return e.cast(e.select(by_zero, plain, floor, into), out)


def _signs_differ(e: Emitter, mod: Scalar, b: Scalar) -> Scalar:
    """Return a flag: the remainder is not 0, and its sign is not the divisor's."""
    zero = number(0)
    differ = e.op(
        arith.XOrIOp, torch.bool, e.compare("lt", mod, zero), e.compare("lt", b, zero)
    )
    return e.both(e.compare("ne", mod, zero), differ)


@rule("remainder")
def _remainder(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    if not out.is_floating_point and not out.is_signed:
        return e.op(arith.RemUIOp, out, a, b)
    into = compute_dtype(out)
    a, b = compute_operands(e, out, a, b)
    mod = e.op(op_for(out, FmodOp, arith.RemSIOp), into, a, b)
    if a.nonnegative and b.nonnegative:
        return e.cast(mod, out)
    fixed = e.select(_signs_differ(e, mod, b), add(e, into, mod, b), mod, into)
    return e.cast(fixed, out)


rule("fmod")(one_op(FmodOp, arith.RemSIOp, arith.RemUIOp))


@rule("neg", "negative")
def neg(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    if out.is_floating_point:
        return e.op(arith.NegfOp, out, x)
    return sub(e, out, number(0), x)


@rule("abs")
def absolute(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    if out.is_floating_point:
        return e.op(math.AbsFOp, out, x)
    return e.op(math.AbsIOp, out, x) if out.is_signed else e.cast(x, out)


@rule("sign", "sgn")
def _sign(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    if x.is_index:
        return clamp(e, out, x, number(-1), number(1))
    zero = number(0)
    positive = e.cast(e.compare("gt", x, zero), out)
    if not x.dtype.is_signed:
        return positive
    return sub(e, out, positive, e.cast(e.compare("lt", x, zero), out))


def _comparison(predicate: str) -> Rule:
    return lambda e, out, a, b: e.compare(predicate, a, b)


for _predicate in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(_predicate)(_comparison(_predicate))
rule("less")(_comparison("lt"))
rule("greater")(_comparison("gt"))


def _logical(op: Any) -> Rule:
    return lambda e, out, a, b: e.op(op, torch.bool, a, b)


for _name, _op in (("and", arith.AndIOp), ("or", arith.OrIOp), ("xor", arith.XOrIOp)):
    rule(f"bitwise_{_name}", f"__{_name}__")(one_op(_op, _op))
    rule(f"logical_{_name}")(_logical(_op))


rule("logical_not")(lambda e, out, x: e.negate(e.cast(x, torch.bool)))


@rule("bitwise_not")
def _bitwise_not(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    if out is torch.bool:
        return e.negate(x)
    return e.op(arith.XOrIOp, out, x, number(-1))


@rule("bitwise_left_shift", "__lshift__")
def _left_shift(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    amount, valid = _shift_amount(e, out, b)
    shifted = e.op(arith.ShLIOp, out, a, amount)
    return e.select(valid, shifted, number(0), out) if valid else shifted


@rule("bitwise_right_shift", "__rshift__")
def _right_shift(e: Emitter, out: torch.dtype, a: Scalar, b: Scalar) -> Scalar:
    amount, valid = _shift_amount(e, out, b)
    op = op_for(out, None, arith.ShRSIOp, arith.ShRUIOp)
    shifted = e.op(op, out, a, amount)
    if valid is None:
        return shifted
    last = number(out.itemsize * 8 - 1)
    filled = e.op(op, out, a, last) if out.is_signed else number(0)
    return e.select(valid, shifted, filled, out)


def _shift_amount(
    e: Emitter, out: torch.dtype, b: Scalar
) -> tuple[Scalar, Scalar | None]:
    """Return an amount within the width, and a flag that is true for valid amounts.

    The flag is None if the amount is known to be valid. A shift beyond the width is
    undefined in `arith`, but torch shifts all bits out.
    """
    bits = out.itemsize * 8
    if b.const is not None and 0 <= b.const < bits:
        return b, None
    b = b if b.dtype is out else e.cast(b, out)
    low, high = e.compare("ge", b, number(0)), e.compare("lt", b, number(bits))
    masked = e.op(arith.AndIOp, out, b, number(bits - 1))
    return masked, e.both(low, high)


rule("where")(lambda e, out, c, a, b: e.select(c, a, b, out))
rule("masked_fill")(lambda e, out, x, mask, value: e.select(mask, value, x, out))

_GREATER = (arith.MaxSIOp, arith.MaxUIOp, arith.OrIOp)
_LESS = (arith.MinSIOp, arith.MinUIOp, arith.AndIOp)
maximum = rule("maximum")(one_op(arith.MaximumfOp, *_GREATER))
minimum = rule("minimum")(one_op(arith.MinimumfOp, *_LESS))
rule("fmax")(one_op(arith.MaxnumfOp, *_GREATER))
rule("fmin")(one_op(arith.MinnumfOp, *_LESS))


@rule("clamp", "clip")
def clamp(
    e: Emitter,
    out: torch.dtype,
    x: Scalar,
    min: Scalar | None = None,
    max: Scalar | None = None,
    ties: Ties = Ties.LHS,
) -> Scalar:
    """Clamp a number. Its derivative is 1 within the bounds and at the bounds."""
    if min is not None:
        x = maximum(e, out, x, min, ties=ties)
    return x if max is None else minimum(e, out, x, max, ties=ties)


@rule("hardtanh")
def clamp_open(
    e: Emitter,
    out: torch.dtype,
    x: Scalar,
    min_val: Scalar = MINUS_ONE,
    max_val: Scalar = ONE,
) -> Scalar:
    """Clamp a number. Its derivative is 1 within the bounds and 0 at the bounds."""
    return clamp(e, out, x, min_val, max_val, Ties.RHS)


rule("clamp_min")(lambda e, out, x, min: clamp(e, out, x, min))
rule("clamp_max")(lambda e, out, x, max: clamp(e, out, x, None, max))


@rule("detach")
def detach(e: Emitter, out: torch.dtype, x: Scalar) -> Scalar:
    """Return the number without its derivative, as a bitcast to its own type."""
    if not out.is_floating_point or x.const is not None:
        return e.cast(x, out)
    value = e.value(x, out)
    return Scalar(out, e.insert(arith.BitcastOp(value, value.type)), weak=x.weak)


_COPIES = "alias clone contiguous lift_fresh lift_fresh_copy positive"
rule(*_COPIES.split(), "_to_copy", "convert_element_type", "to")(
    lambda e, out, x, *args, **kw: e.cast(x, out)
)
rule("copysign")(one_op(math.CopySignOp, math.CopySignOp))


@rule("lerp")
def _lerp(
    e: Emitter, out: torch.dtype, start: Scalar, end: Scalar, weight: Scalar
) -> Scalar:
    into = compute_dtype(out)
    start, end, weight = compute_operands(e, out, start, end, weight)
    span = sub(e, into, end, start)
    near = add(e, into, start, mul(e, into, weight, span))
    rest = sub(e, into, number(1.0), weight)
    far = sub(e, into, end, mul(e, into, span, rest))
    small = e.compare("lt", absolute(e, into, weight), number(0.5))
    return e.cast(e.select(small, near, far, into), out)


def _added(combine: Rule) -> Rule:
    """Return a rule for `x + value * combine(a, b)`, rounded once."""

    def apply(
        e: Emitter, out: torch.dtype, x: Scalar, a: Any, b: Any, *, value: Any = ONE
    ) -> Scalar:
        into = compute_dtype(out)
        x, a, b = compute_operands(e, out, x, a, b)
        term = combine(e, into, scaled(e, into, a, value), b)
        return e.cast(add(e, into, x, term), out)

    return apply


rule("addcmul")(_added(mul))
rule("addcdiv")(_added(div))


@rule("pow", "float_power")
def power(e: Emitter, out: torch.dtype, base: Scalar, exponent: Scalar) -> Scalar:
    if not out.is_floating_point:
        return _int_pow(e, out, base, exponent)
    into = compute_dtype(out)
    base, by = compute_operands(e, out, base, exponent)
    if exponent.const is None:
        return e.cast(e.op(math.PowFOp, into, base, by), out)
    match float(exponent.const):
        case 0.5:
            result = e.op(math.SqrtOp, into, base)
        case -0.5:
            result = div(e, into, number(1.0), e.op(math.SqrtOp, into, base))
        case n if n.is_integer() and 0 < abs(n) <= 4:
            result = _power(e, into, base, int(abs(n)))
            result = div(e, into, number(1.0), result) if n < 0 else result
        case _:
            result = e.op(math.PowFOp, into, base, by)
    return e.cast(result, out)


def _power(e: Emitter, dtype: torch.dtype, base: Scalar, n: int) -> Scalar:
    """Return `base` to the power of a constant, by repeated squaring."""
    result: Scalar | None = None
    while n:
        if n & 1:
            result = base if result is None else mul(e, dtype, result, base)
        n >>= 1
        base = mul(e, dtype, base, base) if n else base
    return e.constant(1, dtype) if result is None else e.cast(result, dtype)


def _int_pow(e: Emitter, out: torch.dtype, base: Scalar, exponent: Scalar) -> Scalar:
    if exponent.const is not None:
        if exponent.const < 0:
            raise UnsupportedOpError(
                "an integer cannot be raised to a negative power; write x.float() ** n"
            )
        return _power(e, out, e.cast(base, out), int(exponent.const))
    # All bits of the exponent count, because torch's products wrap around.
    power, square = e.cast(exponent, out), e.cast(base, out)
    result = e.constant(1, out)
    for bit in range(out.itemsize * 8 - 1):
        is_set = e.op(arith.AndIOp, out, power, number(1 << bit))
        taken = mul(e, out, result, square)
        result = e.select(e.compare("ne", is_set, number(0)), taken, result, out)
        square = mul(e, out, square, square)
    odd = e.compare("ne", e.op(arith.AndIOp, out, power, number(1)), number(0))
    sign = e.select(odd, base, number(1), out)
    unit = e.compare("eq", absolute(e, out, e.cast(base, out)), number(1))
    inverse = e.select(unit, sign, number(0), out)
    return e.select(e.compare("lt", power, number(0)), inverse, result, out)
