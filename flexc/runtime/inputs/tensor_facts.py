"""Facts about the tensors of a call: how they lie in memory, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexc.errors import DeviceError, ShapeError
from flexc.runtime.inputs.arguments import (
    DENSE,
    describe,
    is_lazy,
)

ALIGNMENT = 16
"""Bytes that vector loads and asynchronous copies want addresses aligned to."""

FLOAT_LENGTH = 2**24
"""Positions up to this are exact as floats."""

MAX_COPIED_STRIDE = 1 << 40
"""Bytes that strides of what is copied asynchronously by tiles are less than."""

MAX_NARROW_OFFSET = 2**31 - 1

MAX_TILE_STRIDE = MAX_NARROW_OFFSET // 1024
"""Tiles have at most 512 rows and as many columns."""


def max_length(*lengths: int) -> int | None:
    """A bound on lengths; only one, so that keys do not multiply."""
    return FLOAT_LENGTH if max(lengths) <= FLOAT_LENGTH else None


def check_strides(*tensors: Tensor) -> None:
    """Refuse strides whose offsets within one tile need more than 32 bits."""
    for tensor in tensors:
        if max(tensor.stride(2), tensor.stride(3)) > MAX_TILE_STRIDE:
            raise ShapeError(
                "query, key and value on a GPU expect strides of rows and columns up "
                f"to {MAX_TILE_STRIDE} elements, got strides {tensor.stride()}; make "
                "them contiguous"
            )


def has_unit_stride(tensor: Tensor) -> bool:
    """Whether elements of the last dimension lie next to each other."""
    return tensor.stride(3) == 1 or tensor.size(3) == 1


def is_aligned(tensor: Tensor) -> bool:
    """Whether every row starts at an aligned address, one that copies can reach."""
    size = tensor.element_size()
    return (
        has_unit_stride(tensor)
        and tensor.data_ptr() % ALIGNMENT == 0
        and all(
            tensor.size(d) == 1 or _reaches(tensor.stride(d) * size) for d in range(3)
        )
    )


def _reaches(step: int) -> bool:
    """Whether copies of tiles can take a stride of so many bytes; 0 they can."""
    return step % ALIGNMENT == 0 and step < MAX_COPIED_STRIDE


@dataclass(frozen=True)
class Placement:
    """How query, key and value lie in memory."""

    unit_strides: tuple[bool, bool, bool]
    """Which have elements that lie next to each other."""
    alignment: int | None
    """Of all rows of them, and of an output that is laid out as the query is."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Placement:
        aligned = all(is_aligned(t) for t in (query, key, value))
        aligned = aligned and value.size(3) * value.element_size() % ALIGNMENT == 0
        return cls(
            (has_unit_stride(query), has_unit_stride(key), has_unit_stride(value)),
            ALIGNMENT if aligned else None,
        )


def largest_offset(tensor: Tensor) -> int:
    """The offset of a tensor's last element, in elements."""
    if tensor.numel() <= MAX_NARROW_OFFSET and tensor.is_contiguous():
        return max(tensor.numel() - 1, 0)
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def check_captures(captures: Sequence[Any], device: torch.device) -> None:
    for capture in captures:
        if not isinstance(capture, Tensor):
            continue
        if is_lazy(capture):
            # Nested tensors have no shape.
            of = "" if capture.is_nested else f" of shape {tuple(capture.shape)}"
            raise ShapeError(
                f"a captured tensor{of} expects to be {DENSE}, but is "
                f"{describe(capture)}"
            )
        if capture.device != device:
            raise DeviceError(
                f"captured tensors expect the query's device {device}, got one of "
                f"shape {tuple(capture.shape)} on {capture.device}; move it"
            )
