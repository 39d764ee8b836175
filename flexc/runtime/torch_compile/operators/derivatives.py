"""Derivatives of traced calls, as operators (see `flexc.runtime.autograd`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd.derivatives import (
    Gradients,
    Tangents,
    Wanted,
)
from flexc.runtime.torch_compile.operators.traced import Arguments, TracedAttention


def backward(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The gradients along cotangents."""
    found = torch.ops.flexc.attention_backward(
        *_arguments(call), out, lse, d_out, d_lse, list(wanted.flat)
    )
    return gradients(found, wanted.flat)


def jvp(
    call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
) -> tuple[Tensor, Tensor]:
    """The tangents of out and lse."""
    return torch.ops.flexc.attention_jvp(
        *_arguments(call), out, lse, *_listed(tangents)
    )


def backward_jvp(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    tangents: Tangents,
    t_d_out: Tensor | None,
    t_d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The tangents of the gradients."""
    found = torch.ops.flexc.attention_backward_jvp(
        *_arguments(call),
        out,
        lse,
        d_out,
        d_lse,
        t_d_out,
        t_d_lse,
        *_listed(tangents),
        list(wanted.flat),
    )
    return gradients(found, wanted.flat)


def _arguments(call: Attention) -> Arguments:
    return cast(TracedAttention, call).arguments()


def _listed(tangents: Tangents) -> tuple[list[Tensor], list[bool]]:
    """The tangents that are not zero, and which they are."""
    flat = tangents.flat
    return [t for t in flat if t is not None], [t is not None for t in flat]


def gradients(found: Sequence[Tensor], given: Sequence[bool]) -> Gradients:
    """Tensors in the places of the inputs that they belong to."""
    remaining = iter(found)
    return Gradients.of([next(remaining) if g else None for g in given])
