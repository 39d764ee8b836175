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


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """In f64: exact products for all narrower types, twice rounded for f64."""
    return (a.double() * b.double() + c.double()).to(a.dtype)


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
