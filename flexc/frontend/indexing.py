"""Indexing by traced scalars, beside slices, None and Ellipsis.

torch reads a 0-d index tensor's value when it stands beside a slice, which a
traced one does not have. Here such an index is a view and then `aten.index`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class IndexByScalars(TorchFunctionMode):
    """Under it, `x[i, :, None]` with scalar tensors `i` never calls `i.item()`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__:
            tensor, items = args
            items = items if isinstance(items, tuple) else (items,)
            if _has_scalars(items):
                return _index(tensor, items)
        return func(*args, **(kwargs or {}))


def _is_integer(item: Any) -> bool:
    if not isinstance(item, Tensor) or item.dim():
        return False
    return item.dtype is not torch.bool and not item.dtype.is_floating_point


def _has_scalars(items: tuple[Any, ...]) -> bool:
    """Some index is a scalar tensor, and no other one has a rank."""
    tensors = [i for i in items if isinstance(i, Tensor | list)]
    return bool(tensors) and all(map(_is_integer, tensors))


def _index(tensor: Tensor, items: tuple[Any, ...]) -> Tensor:
    kept = tuple(slice(None) if isinstance(i, Tensor) else i for i in items)
    full = slice(None)
    view = tensor if all(k == full for k in kept) else tensor[kept]
    named = len([i for i in items if i is not None and i is not ...])
    indices: list[Tensor | None] = []
    for item in items:
        if isinstance(item, Tensor):
            wide = item.dtype in (torch.int32, torch.int64)
            indices.append(item if wide else item.to(torch.int32))
        elif item is ...:
            indices += [None] * (tensor.dim() - named)
        elif item is None or isinstance(item, slice):
            indices.append(None)
    return torch.ops.aten.index(view, indices)
