"""Reading and writing of tiles of tensors.

An access outside a tensor along a dimension that is not checked raises
InterpretationError. So running a kernel tests that omitted checks are unnecessary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError


def load_tile(
    tensor: Tensor,
    indices: Sequence[Tensor],
    shape: Sequence[int],
    checked: Sequence[int],
) -> Tensor:
    """Read a tile of `shape` at `indices`; elements outside the tensor are 0."""
    part, inside = window(tensor, indices, shape, checked)
    if part.shape == tuple(shape):
        return part
    result = part.new_zeros(shape)
    result[inside] = part
    return result


def in_sequence(tensor: Tensor, table: Tensor) -> Tensor:
    """Return the rows (B, H, S, E) of sequences that lie in pages (P, H, size, E)."""
    pages = tensor[table.to(torch.int64).clamp(0, len(tensor) - 1)]
    return pages.transpose(1, 2).flatten(2, 3)


def load_some(
    tensor: Tensor,
    indices: Sequence[Tensor],
    shape: Sequence[int],
    checked: Sequence[int],
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """Read the first `count` rows of a tile; values in other rows reveal any use."""
    some = load_tile(tensor, indices, [count, *shape[1:]], checked)
    result = unspecified(shape, dtype)
    result[:count] = some.to(dtype)
    return result


def unspecified(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return values that reveal any use: NaN, or an integer far from all others."""
    if dtype.is_floating_point:
        return torch.full(shape, torch.nan, dtype=dtype)
    return torch.full(shape, torch.iinfo(dtype).min if dtype != torch.bool else 1).to(
        dtype
    )


def store_tile(
    value: Tensor, memref: Tensor, indices: Sequence[Tensor], checked: Sequence[int]
) -> None:
    """Write the elements of a tile at `indices` that lie inside the memref."""
    verify_same_dtype(value, memref)
    part, inside = window(memref, indices, value.shape, checked)
    part.copy_(value[inside])


def add_tile(
    value: Tensor,
    memref: Tensor,
    indices: Sequence[Tensor],
    checked: Sequence[int] = (),
) -> None:
    """Add the elements of a tile to those at `indices` that lie inside the memref."""
    verify_same_dtype(value, memref)
    part, inside = window(memref, indices, value.shape, checked)
    part += value[inside]


def window(
    tensor: Tensor,
    indices: Sequence[Tensor],
    shape: Sequence[int],
    checked: Sequence[int],
) -> tuple[Tensor, tuple[slice, ...]]:
    """Return the part of a tensor that a tile covers, and its slices in the tile."""
    starts = [int(i) for i in indices]
    leading = tensor.dim() - len(shape)
    for dim, start in enumerate(starts[:leading]):
        if not 0 <= start < tensor.shape[dim]:
            _raise_outside(tensor, dim, start, 1)
    # Index the leading dimensions; the tile's dimensions remain.
    part = tensor[tuple(starts[:leading])]
    inside = []
    for dim, (start, size) in enumerate(zip(starts[leading:], shape, strict=True)):
        length = part.shape[dim]
        low, high = min(max(start, 0), length), min(start + size, length)
        if dim not in checked and (low, high) != (start, start + size):
            _raise_outside(tensor, leading + dim, start, size)
        high = max(low, high)
        part = part.narrow(dim, low, high - low)
        inside.append(slice(low - start, high - start) if high > low else slice(0, 0))
    return part, tuple(inside)


def _raise_outside(tensor: Tensor, dim: int, start: int, size: int) -> None:
    raise InterpretationError(
        f"expected an access inside dimension {dim} of size {tensor.shape[dim]}, "
        f"which is not checked, got elements {start} to {start + size - 1}"
    )


def verify_same_dtype(value: Tensor, memref: Tensor) -> None:
    """Raise InterpretationError if dtypes differ: rounding is an op of its own."""
    if value.dtype != memref.dtype:
        raise InterpretationError(
            f"expected to store {memref.dtype} as the memref holds, got {value.dtype}"
        )


def storage(tensor: Tensor) -> Tensor:
    """Return a flat view of memory, from a tensor's first element to its last."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def read_storage(tensor: Tensor, offsets: Tensor, valid: Tensor | None) -> Tensor:
    """Read elements at flat offsets from the tensor's first; 0 where not valid."""
    flat = storage(tensor)
    offsets = checked_offsets(flat, offsets, valid)
    if flat.numel() == 0:
        return flat.new_zeros(offsets.shape)
    value = flat[offsets]
    if valid is None:
        return value
    return torch.where(valid, value, value.new_zeros(()))


def read_diagonals(
    tensor: Tensor,
    first: Tensor,
    step: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """Read the elements at `first + step * (row - column)`.

    `rows` and `columns` are the numbers of rows and columns that count. Other elements
    hold values that reveal any use.
    """
    row, column = (torch.arange(n, dtype=torch.int32) for n in shape)
    row, column = row[:, None], column[None, :]
    inside = torch.ones(tuple(shape), dtype=torch.bool)
    if columns is not None:
        inside = inside & (column < columns)
    last = shape[0] - 1 if rows is None else rows - 1
    offsets = first + step * (row.clamp(max=last) - column).to(first.dtype)
    value = read_storage(tensor, offsets, inside).to(dtype)
    return torch.where(inside & (row <= last), value, unspecified(shape, dtype))


def write_storage(
    memref: Tensor, offsets: Tensor, valid: Tensor | None, value: Tensor
) -> None:
    """Write elements at flat offsets, where valid."""
    verify_same_dtype(value, memref)
    flat = storage(memref)
    offsets = checked_offsets(flat, offsets, valid)
    if valid is None:
        flat[offsets] = value
    else:
        valid = valid.expand(offsets.shape)
        flat[offsets[valid]] = value[valid]


def add_to_storage(
    memref: Tensor, offsets: Tensor, value: Tensor, valid: Tensor | None = None
) -> None:
    """Add elements at flat offsets, where valid; these exist and differ."""
    verify_same_dtype(value, memref)
    flat = storage(memref)
    if valid is not None:
        valid = valid.expand(offsets.shape)
        offsets, value = offsets[valid], value[valid]
    offsets = checked_offsets(flat, offsets, None)
    if offsets.unique().numel() != offsets.numel():
        raise InterpretationError("expected to add to each element once")
    flat[offsets] += value


def checked_offsets(flat: Tensor, offsets: Tensor, valid: Tensor | None) -> Tensor:
    """Return the offsets, with 0 for those that are not valid.

    Raise InterpretationError if a valid offset is outside.
    """
    offsets = offsets.to(torch.int64)
    outside = (offsets < 0) | (offsets >= flat.numel())
    if valid is not None:
        outside = outside & valid
        offsets = torch.where(valid, offsets, 0)
    if outside.any():
        worst = offsets.expand_as(outside)[outside][0].item()
        raise InterpretationError(
            f"expected offsets within {flat.numel()} elements, got {worst}"
        )
    return offsets
