"""Arithmetic on torch tensors with the semantics of MLIR.

Integers are torch's signed integers. No operation raises or traps. Division by zero
yields 0. Shifts by at least the width shift out all bits. The least integer divided by
-1 wraps. i1 is `torch.bool`; true is -1 to signed ops and 1 to unsigned ops.

Functions of bf16 and f16 are computed in f32 and rounded once, as in kernels: torch
lacks some of these functions for narrow types on some devices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def on_bits(function: Function, true: int = -1) -> Function:
    """Extend a function to i1 through int8, since torch has no arithmetic on i1.

    `true` is the int8 value of a true i1.
    """

    def wrapped(*args: Tensor) -> Tensor:
        if args[0].dtype is not torch.bool:
            return function(*args)
        return (function(*(a.to(torch.int8) * true for a in args)) & 1).bool()

    return wrapped


def on_unsigned_bits(function: Function) -> Function:
    """Extend a function to i1 as `on_bits` does, where a true i1 is 1."""
    return on_bits(function, 1)


def width_of(x: Tensor) -> int:
    return 8 * x.dtype.itemsize


def _flip_sign(x: Tensor) -> Tensor:
    """Map unsigned order to signed order."""
    return x ^ torch.iinfo(x.dtype).min


def unsigned(x: Tensor) -> Tensor:
    """Return the unsigned value as int64.

    The value of an int64 is returned unchanged.
    """
    if x.dtype in (torch.bool, torch.int64):
        return x.to(torch.int64)
    return x.to(torch.int64) & ((1 << width_of(x)) - 1)


def signed_divide(mode: str) -> Function:
    """Return a signed division that rounds by torch's `mode`."""

    def divide(x: Tensor, y: Tensor) -> Tensor:
        unusual = (y == 0) | (y == -1)
        quotient = torch.div(x, torch.where(unusual, 1, y), rounding_mode=mode)
        # On a GPU, this check would wait for the device.
        if y.device.type == "cpu" and not unusual.any():
            return quotient
        return torch.where(y == 0, 0, torch.where(y == -1, -x, quotient))

    return divide


trunc_divide = signed_divide("trunc")
floor_divide = signed_divide("floor")


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of `trunc_divide`, with the sign of x; 0 if y is 0."""
    return torch.where(y == 0, 0, x - trunc_divide(x, y) * y)


def ceil_divide(x: Tensor, y: Tensor) -> Tensor:
    quotient = trunc_divide(x, y)
    rest = x - quotient * y
    up = (rest != 0) & ((rest < 0) == (y < 0)) & (y != 0)
    return quotient + up.to(x.dtype)


def divide_unsigned(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != torch.int64:
        return trunc_divide(unsigned(x), unsigned(y)).to(x.dtype)
    # A divisor of at least 2**63 fits in x once or not at all. For other divisors, half
    # of x is a signed number, and its quotient doubled is at most one too small.
    half = trunc_divide(shift_right_unsigned(x, torch.ones_like(x)), y)
    quotient = half << 1
    quotient = quotient + less_equal_unsigned(y, x - quotient * y).to(x.dtype)
    once = less_equal_unsigned(y, x).to(x.dtype)
    return torch.where(y == 0, 0, torch.where(y < 0, once, quotient))


def remainder_unsigned(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == 0, 0, x - divide_unsigned(x, y) * y)


def ceil_divide_unsigned(x: Tensor, y: Tensor) -> Tensor:
    up = (remainder_unsigned(x, y) != 0).to(x.dtype)
    return divide_unsigned(x, y) + up


def less_unsigned(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype == torch.bool:
        return ~x & y
    return _flip_sign(x) < _flip_sign(y)


def less_equal_unsigned(x: Tensor, y: Tensor) -> Tensor:
    return ~less_unsigned(y, x)


def min_unsigned(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(less_unsigned(x, y), x, y)


def max_unsigned(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(less_unsigned(x, y), y, x)


def _too_far(x: Tensor, by: Tensor) -> Tensor:
    return (by < 0) | (by >= width_of(x))


def shift_left(x: Tensor, by: Tensor) -> Tensor:
    far = _too_far(x, by)
    return torch.where(far, 0, x << torch.where(far, 0, by))


def shift_right(x: Tensor, by: Tensor) -> Tensor:
    return x >> torch.where(_too_far(x, by), width_of(x) - 1, by)


def shift_right_unsigned(x: Tensor, by: Tensor) -> Tensor:
    far = _too_far(x, by)
    by = torch.where(far, 0, by)
    if x.dtype != torch.int64:
        shifted = (unsigned(x) >> by.to(torch.int64)).to(x.dtype)
    else:
        # Mask off the copies of the sign that the arithmetic shift brings in.
        kept = torch.where(by == 0, -1, (1 << (64 - by).clamp(max=63)) - 1)
        shifted = (x >> by) & kept
    return torch.where(far, 0, shifted)


def popcount(x: Tensor) -> Tensor:
    """Count set bits, with all fields of a word in parallel."""
    n = unsigned(x)
    n = n - ((n >> 1) & 0x5555555555555555)
    n = (n & 0x3333333333333333) + ((n >> 2) & 0x3333333333333333)
    n = (n + (n >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((n * 0x0101010101010101) >> 56).to(x.dtype)


def leading_zeros(x: Tensor) -> Tensor:
    smeared = x
    for by in (1, 2, 4, 8, 16, 32):
        if by < width_of(x):
            # Copies of the sign are harmless, since a set sign bit smears over all
            # bits.
            smeared = smeared | (smeared >> by)
    return popcount(~smeared)


def trailing_zeros(x: Tensor) -> Tensor:
    return popcount((x & -x) - 1)


def power(x: Tensor, n: Tensor) -> Tensor:
    """Return x ** n.

    For negative n, return 1 / x ** -n, rounded toward zero; 0 if undefined.
    """
    odd = (n & 1).bool()
    inverse = torch.where(x == 1, 1, torch.where(x == -1, 1, 0)).to(x.dtype)
    inverse = torch.where((x == -1) & odd, -inverse, inverse)
    x, n = torch.broadcast_tensors(x, n)
    return torch.where(n < 0, inverse, torch.pow(x, n.clamp(min=0)))


CMPI: tuple[Function, ...] = (
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    less_unsigned,
    less_equal_unsigned,
    lambda x, y: less_unsigned(y, x),
    lambda x, y: less_equal_unsigned(y, x),
)
"""The comparisons in the order of the predicates of `arith.cmpi`."""


def compare(predicate: int, x: Tensor, y: Tensor) -> Tensor:
    """Interpret `arith.cmpi`; a true i1 is -1 to the signed predicates."""
    if x.dtype == torch.bool and 2 <= predicate <= 5:
        x, y = y, x
    return CMPI[predicate](x, y)


def extend(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.extsi`."""
    return -x.to(dtype) if x.dtype == torch.bool else x.to(dtype)


def extend_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.extui`."""
    return unsigned(x).to(dtype)


def truncate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.trunci`."""
    return (x & 1).bool() if dtype == torch.bool else x.to(dtype)


def to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.sitofp`.

    An i1 is negated as an integer, so false becomes +0.0.
    """
    return extend(x, torch.int8).to(dtype) if x.dtype == torch.bool else x.to(dtype)


def to_float_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.uitofp`."""
    if x.dtype != torch.int64:
        return unsigned(x).to(dtype)
    # Half of a 64-bit number, with the last bit kept for rounding, is signed.
    half = shift_right_unsigned(x, torch.ones_like(x)) | (x & 1)
    return torch.where(x < 0, half.to(dtype) * 2, x.to(dtype))


_NARROW = (torch.bfloat16, torch.float16)


def widened(function: Function) -> Function:
    """Extend a function to narrow float types, which are computed in f32."""

    def wrapped(*args: Tensor) -> Tensor:
        dtype = args[0].dtype
        if dtype not in _NARROW:
            return function(*args)
        return function(*(a.float() for a in args)).to(dtype)

    return wrapped


def round_half_away(x: Tensor) -> Tensor:
    """Interpret `math.round`.

    Adding 0.5 and truncating would be wrong for the number just below 0.5.
    """
    whole = x.trunc()
    up = ((x - whole).abs() >= 0.5).to(x.dtype)
    return torch.copysign(whole.abs() + up, x)


def cube_root(x: Tensor) -> Tensor:
    wide = x.double()
    return torch.copysign(wide.abs() ** (1 / 3), wide).to(x.dtype)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a + b as a rounded sum and its error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a * b of f64 as a rounded product and its error (Dekker)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = a_low * b_low - (
        ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
    )
    return product, error


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split an f64 into a sum of two 26-bit numbers, whose products are exact."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """Return a + b rounded to odd.

    Rounding the result again to a narrower type gives the correctly rounded sum.
    """
    total, error = two_sum(a, b)
    bits = total.view(torch.int32 if total.dtype == torch.float32 else torch.int64)
    away = torch.where((error > 0) == (total > 0), 1, -1)
    move = (error != 0) & total.isfinite() & (bits & 1 == 0)
    return (bits + torch.where(move, away, 0).to(bits.dtype)).view(total.dtype)


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a * b + c, rounded once.

    A product of narrower numbers is exact in f32 or f64. A product of f64 is computed
    as a sum of two numbers, to which c is added by the algorithm of Boldo and Melquiond
    ("Emulation of a FMA and correctly rounded sums", 2008). Plain arithmetic provides
    the sign of zeros, and results whose intermediate values overflow.
    """
    dtype = a.dtype
    if dtype != torch.float64:
        wide = torch.float64 if dtype == torch.float32 else torch.float32
        return add_to_odd(a.to(wide) * b.to(wide), c.to(wide)).to(dtype)
    high, low = two_product(a, b)
    rest, tail = two_sum(c, low)
    total, error = two_sum(high, rest)
    exact = total + add_to_odd(error, tail)
    return torch.where(exact.isfinite() & (exact != 0), exact, a * b + c)


def power_of_integer(x: Tensor, n: Tensor) -> Tensor:
    """Interpret `math.fpowi`."""
    return torch.pow(x.double(), n.double()).to(x.dtype)


def to_integer(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.fptosi`; unspecified if the value does not fit."""
    if dtype == torch.bool:
        return x.trunc() != 0
    return x.to(dtype)


def to_integer_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.fptoui`; unspecified if the value does not fit."""
    if dtype == torch.bool:
        return x.trunc() != 0
    if dtype != torch.int64:
        return x.to(torch.int64).to(dtype)
    wide = x.double()
    high = (wide - 2.0**63).to(dtype) ^ torch.iinfo(dtype).min
    return torch.where(wide >= 2.0**63, high, wide.to(dtype))


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.extf` and `arith.truncf`."""
    return x.to(dtype)


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpret `arith.bitcast`."""
    return x.view(dtype)


def _always(value: bool) -> Function:
    def function(x: Tensor, y: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x.shape, y.shape)
        return torch.full(shape, value, device=x.device)

    return function


def _unless(function: Function) -> Function:
    return lambda x, y: ~function(x, y)


def _ordered(x: Tensor, y: Tensor) -> Tensor:
    return (x == x) & (y == y)


def _ordered_unequal(x: Tensor, y: Tensor) -> Tensor:
    return (x < y) | (x > y)


CMPF: tuple[Function, ...] = (
    _always(False),
    torch.eq,
    torch.gt,
    torch.ge,
    torch.lt,
    torch.le,
    _ordered_unequal,
    _ordered,
    _unless(_ordered_unequal),
    _unless(torch.le),
    _unless(torch.lt),
    _unless(torch.ge),
    _unless(torch.gt),
    torch.ne,
    _unless(_ordered),
    _always(True),
)
"""The comparisons in the order of the predicates of `arith.cmpf`.

Torch's comparisons are ordered, except `ne`. An unordered comparison is the negation of
the opposite ordered comparison.
"""
