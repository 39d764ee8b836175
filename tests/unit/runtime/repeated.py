"""What tests of repeated calls share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import flexc

attend: Any = flexc.flex_attention


def qkv(length: int = 40, heads: int = 2, **options: Any) -> list[Tensor]:
    return [torch.randn(1, heads, length, 16, **options) for _ in range(3)]


def leaves(length: int = 40) -> list[Tensor]:
    """Query, key and value whose gradients are recorded."""
    return qkv(length, requires_grad=True)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def same(ids: Tensor) -> Any:
    """A mask of documents."""
    return lambda b, h, q, k: ids[q] == ids[k]
