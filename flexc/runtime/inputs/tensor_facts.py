"""Facts about the tensors of a call: memory layout and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from flexc.errors import DeviceError, ShapeError
from flexc.runtime.inputs.arguments import DENSE, describe, is_lazy

ALIGNMENT = 16
"""The alignment in bytes that vector loads and asynchronous copies need."""

FLOAT_LENGTH = 2**24
"""The number of positions up to which positions are exact as floats."""

MAX_COPIED_STRIDE = 1 << 40
"""A limit in bytes on strides of tensors that are copied asynchronously by tiles."""

MAX_NARROW_OFFSET = 2**31 - 1

MAX_TILE_STRIDE = MAX_NARROW_OFFSET // 1536
"""The largest stride whose offsets within a tile fit 32 bits. Tiles have at most 512
rows and 1024 columns.
"""


MOST_QUERIES = 16
"""The most queries of a folded call: each number of queries has a kernel of its own."""


def max_length(*lengths: int) -> int | None:
    """Return the bound on lengths that kernels may assume, or None.

    There is only one bound, so that few kernels are compiled.
    """
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


@cache
def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of scores and sums of a dtype: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def has_unit_stride(tensor: Tensor) -> bool:
    """Return True if elements of the last dimension are adjacent in memory."""
    return tensor.stride(3) == 1 or tensor.size(3) == 1


def is_aligned(tensor: Tensor) -> bool:
    """Return True if every row is aligned and within reach of asynchronous copies."""
    if not has_unit_stride(tensor) or tensor.data_ptr() % ALIGNMENT:
        return False
    element = tensor.element_size()
    for size, stride in zip(tensor.shape[:3], tensor.stride(), strict=False):
        step = stride * element  # Copies of tiles support a step of 0.
        if size != 1 and (step % ALIGNMENT or step >= MAX_COPIED_STRIDE):
            return False
    return True


def has_far_rows(tensor: Tensor) -> bool:
    """Return True if rows lie apart, or those of a block fall on few sets of a cache.

    `NearRows` in flexc_memory.h decides so.
    """
    step, columns = tensor.stride(2), tensor.size(3)
    is_even = step > 0 and step * tensor.element_size() % 512 == 0
    return has_unit_stride(tensor) and (step >= 2 * columns or is_even)


def are_first_columns(value: Tensor, key: Tensor) -> bool:
    """Return True if values are a view of the first columns of keys."""
    return (
        value.data_ptr() == key.data_ptr()
        and value.dtype == key.dtype
        and value.stride() == key.stride()
        and value.shape[:3] == key.shape[:3]
        and value.size(3) <= key.size(3)
    )


@dataclass(frozen=True)
class Placement:
    """The memory layout of query, key and value."""

    unit_strides: tuple[bool, bool, bool]
    """For each of query, key and value, True if elements of a row are adjacent."""
    alignment: int | None
    """The alignment in bytes of all rows, and of rows of an output laid out as the
    query.
    """
    far: tuple[bool, bool]
    """For key and value, True if a CPU's threads copy rows that they read again."""
    values_in_keys: bool
    """True if values are a view of the first columns of keys."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Placement:
        tensors = (key, value) if query is key else (query, key, value)
        aligned = value.size(3) * query.element_size() % ALIGNMENT == 0
        aligned = aligned and all(map(is_aligned, tensors))
        return cls(
            (has_unit_stride(query), has_unit_stride(key), has_unit_stride(value)),
            ALIGNMENT if aligned else None,
            (has_far_rows(key), has_far_rows(value)),
            are_first_columns(value, key),
        )


def largest_offset(tensor: Tensor) -> int:
    """Return the offset of a tensor's last element, in elements."""
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
                f"shape {tuple(capture.shape)} on {capture.device}; write "
                "`table = table.to(query.device)` before the call"
            )
        # Kernels take sizes as i32. Symbolic sizes are checked when they are numbers.
        longest = max((n for n in capture.shape if type(n) is int), default=0)
        if longest > MAX_NARROW_OFFSET:
            raise ShapeError(
                f"a captured tensor expects dimensions of up to {MAX_NARROW_OFFSET} "
                f"elements, got one of shape {tuple(capture.shape)}; capture a view "
                "with shorter dimensions, as of table.unflatten(0, (-1, n)), and index "
                "it by `table[i // n, i % n]`"
            )
