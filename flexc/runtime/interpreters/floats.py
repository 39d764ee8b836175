"""Floating-point arithmetic as MLIR defines it, on torch tensors.

Functions of bf16 and f16 are computed in f32 and rounded once: not all of them
exist for these types on every device, and this is what kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[..., Tensor]

_NARROW = (torch.bfloat16, torch.float16)


def widened(function: Function) -> Function:
    """Compute narrow types in f32."""

    def wrapped(*args: Tensor) -> Tensor:
        dtype = args[0].dtype
        if dtype not in _NARROW:
            return function(*args)
        return function(*(a.float() for a in args)).to(dtype)

    return wrapped


def round_half_away(x: Tensor) -> Tensor:
    """`math.round`: adding 0.5 would be wrong for the number just below 0.5."""
    whole = x.trunc()
    up = ((x - whole).abs() >= 0.5).to(x.dtype)
    return torch.copysign(whole.abs() + up, x)


def cube_root(x: Tensor) -> Tensor:
    wide = x.double()
    return torch.copysign(wide.abs() ** (1 / 3), wide).to(x.dtype)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as a rounded sum and its error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a * b of f64 as a rounded product and its error (Dekker)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = a_low * b_low - (
        ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
    )
    return product, error


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """An f64 as a sum of two numbers of 26 bits, whose products are exact."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """a + b rounded to odd: rounded once more, it is as if rounded only once."""
    total, error = two_sum(a, b)
    bits = total.view(torch.int32 if total.dtype == torch.float32 else torch.int64)
    away = torch.where((error > 0) == (total > 0), 1, -1)
    move = (error != 0) & total.isfinite() & (bits & 1 == 0)
    return (bits + torch.where(move, away, 0).to(bits.dtype)).view(total.dtype)


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c, rounded once.

    A product of narrower numbers is exact in f32 or f64. One of f64 is a sum of
    two, to which c is added as Boldo and Melquiond do ("Emulation of a FMA and
    correctly rounded sums", 2008). Zeros get their sign, and what overflows on
    the way its value, from plain arithmetic.
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
    """`math.fpowi`."""
    return torch.pow(x.double(), n.double()).to(x.dtype)


def to_integer(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.fptosi`; unspecified where the result does not fit."""
    if dtype == torch.bool:
        return x.trunc() != 0
    return x.to(dtype)


def to_integer_unsigned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.fptoui`; unspecified where the result does not fit."""
    if dtype == torch.bool:
        return x.trunc() != 0
    if dtype != torch.int64:
        return x.to(torch.int64).to(dtype)
    wide = x.double()
    high = (wide - 2.0**63).to(dtype) ^ torch.iinfo(dtype).min
    return torch.where(wide >= 2.0**63, high, wide.to(dtype))


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.extf` and `arith.truncf`."""
    return x.to(dtype)


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`arith.bitcast`."""
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
"""Comparisons in the order of `arith.cmpf`'s predicates.

Torch's are ordered, except `ne`; an unordered one denies its ordered opposite.
"""
