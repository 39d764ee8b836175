"""Integer arithmetic as MLIR defines it, on torch's signed integers.

Nothing raises and nothing traps: division by zero yields 0, shifts by the
width or more shift everything out, and the smallest number divided by -1 wraps.
i1 is `torch.bool`, for which signed ops see -1 and unsigned ones 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def on_bits(function: Function, true: int = -1) -> Function:
    """Serve i1 too, of which torch has no arithmetic, through a wider type."""

    def wrapped(*args: Tensor) -> Tensor:
        if args[0].dtype is not torch.bool:
            return function(*args)
        return (function(*(a.to(torch.int8) * true for a in args)) & 1).bool()

    return wrapped


def on_unsigned_bits(function: Function) -> Function:
    """As `on_bits`; a true i1 is 1."""
    return on_bits(function, 1)


def width_of(x: Tensor) -> int:
    return 8 * x.dtype.itemsize


def _flip_sign(x: Tensor) -> Tensor:
    """Map unsigned order to signed order."""
    return x ^ torch.iinfo(x.dtype).min


def unsigned(x: Tensor) -> Tensor:
    """The unsigned value as int64, for types narrower than that."""
    if x.dtype in (torch.bool, torch.int64):
        return x.to(torch.int64)
    return x.to(torch.int64) & ((1 << width_of(x)) - 1)


def signed_divide(mode: str) -> Function:
    """Signed division that rounds by torch's `mode`."""

    def divide(x: Tensor, y: Tensor) -> Tensor:
        unusual = (y == 0) | (y == -1)
        quotient = torch.div(x, torch.where(unusual, 1, y), rounding_mode=mode)
        # To ask a GPU would be to wait for it.
        if y.device.type == "cpu" and not unusual.any():
            return quotient
        return torch.where(y == 0, 0, torch.where(y == -1, -x, quotient))

    return divide


trunc_divide = signed_divide("trunc")
floor_divide = signed_divide("floor")


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """The remainder of `trunc_divide`: it has the sign of x; 0 for y = 0."""
    return torch.where(y == 0, 0, x - trunc_divide(x, y) * y)


def ceil_divide(x: Tensor, y: Tensor) -> Tensor:
    quotient = trunc_divide(x, y)
    rest = x - quotient * y
    up = (rest != 0) & ((rest < 0) == (y < 0)) & (y != 0)
    return quotient + up.to(x.dtype)


def divide_unsigned(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != torch.int64:
        return trunc_divide(unsigned(x), unsigned(y)).to(x.dtype)
    # A divisor of 2**63 or more goes in once or not at all; for others, half
    # of x is a signed number whose quotient is at most one short.
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
        # The sign's copies, which the arithmetic shift brings in, are masked off.
        kept = torch.where(by == 0, -1, (1 << (64 - by).clamp(max=63)) - 1)
        shifted = (x >> by) & kept
    return torch.where(far, 0, shifted)


def popcount(x: Tensor) -> Tensor:
    """Count set bits, in all of a word's fields at once."""
    n = unsigned(x)
    n = n - ((n >> 1) & 0x5555555555555555)
    n = (n & 0x3333333333333333) + ((n >> 2) & 0x3333333333333333)
    n = (n + (n >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((n * 0x0101010101010101) >> 56).to(x.dtype)


def leading_zeros(x: Tensor) -> Tensor:
    smeared = x
    for by in (1, 2, 4, 8, 16, 32):
        if by < width_of(x):
            # Copies of the sign are harmless: its own bit smears over all.
            smeared = smeared | (smeared >> by)
    return popcount(~smeared)


def trailing_zeros(x: Tensor) -> Tensor:
    return popcount((x & -x) - 1)


def power(x: Tensor, n: Tensor) -> Tensor:
    """x ** n; for negative n what 1 / x ** -n rounds to, 0 where it is undefined."""
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
"""Comparisons in the order of `arith.cmpi`'s predicates."""


def compare(predicate: int, x: Tensor, y: Tensor) -> Tensor:
    """`arith.cmpi`; a true i1 is -1 to the signed predicates."""
    if x.dtype == torch.bool and 2 <= predicate <= 5:
        x, y = y, x
    return CMPI[predicate](x, y)


def extend(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.extsi`."""
    return -x.to(dtype) if x.dtype == torch.bool else x.to(dtype)


def extend_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.extui`."""
    return unsigned(x).to(dtype)


def truncate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.trunci`."""
    return (x & 1).bool() if dtype == torch.bool else x.to(dtype)


def to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.sitofp`; negated as an integer, a false i1 gives +0.0."""
    return extend(x, torch.int8).to(dtype) if x.dtype == torch.bool else x.to(dtype)


def to_float_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.uitofp`."""
    if x.dtype != torch.int64:
        return unsigned(x).to(dtype)
    # Half of a number of 64 bits, its last bit kept for rounding, is signed.
    half = shift_right_unsigned(x, torch.ones_like(x)) | (x & 1)
    return torch.where(x < 0, half.to(dtype) * 2, x.to(dtype))
