"""Tensors under torch.func's transforms: whether they are, and what is in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def is_transformed() -> bool:
    """Whether a call is under vmap, grad, jvp or their like."""
    return _functorch.maybe_current_level() is not None


def plain(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and strides that no transform knows.

    Of a batched one, the first slice.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        inner = _functorch.get_unwrapped(tensor)
        if _functorch.is_batchedtensor(tensor):
            inner = inner.select(_functorch.maybe_get_bdim(tensor), 0)
        tensor = inner
    return tensor
