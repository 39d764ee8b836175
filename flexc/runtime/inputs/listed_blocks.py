"""The blocks that tables list, read from the tables themselves; planned tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flexc.errors import BlockMaskError
from flexc.passes.flex.planning.tables import ALIGNMENT, KINDS, LINES


def check_listed(tensors: Sequence[Tensor], columns: int) -> None:
    """Check that tables on a CPU list existing blocks, and not more than fit in a row.

    Tables on a GPU are not checked, because that would synchronize.
    """
    if not tensors[0].is_cpu:
        return
    are_within = True
    for counts, indices in zip(tensors[::2], tensors[1::2], strict=True):
        width = indices.size(-1)
        most = int(_once(counts).max()) if counts.numel() else 0
        if most > width:
            raise BlockMaskError(
                f"block_mask counts {most} blocks in a row of a table {width} wide; "
                "make its indices as wide as its fullest row"
            )
        if indices.numel():
            least, greatest = _once(indices).aminmax()
            are_within &= int(least) >= 0 and int(greatest) < columns
    if not are_within:
        for counts, indices in pairs_of(tensors):
            _check_used(counts, indices, columns)


def _check_used(counts: Tensor, indices: Tensor, columns: int) -> None:
    """Check the entries of a table within the counts, ignoring all others."""
    listed = indices[is_used(counts, indices)]
    beyond = listed[(listed < 0) | (listed >= columns)]
    if beyond.numel():
        block = int(beyond.min())
        how = (
            "make one for this length (an adjusted mask may list its origin's blocks)"
            if block != -1
            else "torch's PagedAttention lists -1 for pages that a sequence has not "
            "reserved: call with flexc.pages_of_torch instead (docs/caches.md)"
        )
        raise BlockMaskError(
            f"block_mask lists block {block}, of {columns} blocks of keys; {how}"
        )


def pairs_of(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return (counts, indices) of partial and of full blocks.

    A batch or head dimension that is broadcast in all tensors has size 1.
    """
    single = [_once(t) for t in tensors]
    lead = torch.broadcast_shapes(*(t.shape[:2] for t in single))
    single = [t.expand(*lead, *t.shape[2:]) for t in single]
    return list(zip(single[::2], single[1::2], strict=True))


def _once(table: Tensor) -> Tensor:
    """Return a table whose broadcast batch and head dimensions have size 1."""
    for dim in (0, 1):
        if table.stride(dim) == 0 and table.size(dim) > 1:
            table = table.narrow(dim, 0, 1)
    return table


def is_used(counts: Tensor, indices: Tensor) -> Tensor:
    """Return True for each entry of a table within the counts."""
    places = torch.arange(indices.size(-1), device=indices.device)
    return places < counts[..., None]


def classes_of(
    pairs: Sequence[tuple[Tensor, Tensor]], columns: int, kinds: Sequence[int]
) -> Tensor:
    """Return the kind of each block, 0 if no table lists it.

    The shape is (batches, heads, rows, columns). Blocks beyond the last column are left
    out.
    """
    (first, _), *_ = pairs
    classes = first.new_zeros((*first.shape, columns + 1), dtype=torch.int8)
    for kind, (counts, indices) in zip(kinds, pairs, strict=False):
        used = is_used(counts, indices) & (indices >= 0) & (indices < columns)
        column = torch.where(used, indices, columns).to(torch.int64)
        classes.scatter_(-1, column, kind)
    return classes[..., :-1]


Table = tuple[Tensor, Tensor]
"""The number of blocks of each row, and the indices of these blocks."""


class TablesLayout:
    """The layout of all tables for classes of a shape, in one allocation.

    `list_blocks` and `order` compute the same places.
    """

    def __init__(self, shape: tuple[int, ...], both: bool, start: int = 0):
        b, h, rows, columns = shape
        self.both = both
        """True if there are tables of columns."""
        lines = [(rows, columns), (columns, rows)] if both else [(rows, columns)]
        self.places: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        """The shape, strides and offset of each table."""
        self.start = self.end = start
        """The first element of the tables in their memory, and the end."""
        self.programs = sum(-(-n // LINES) for n, _ in lines)
        """The number of programs that fill the tables of a batch and head."""
        for n, entries in lines:
            for _ in KINDS:
                self._add((b, h, n), (h * n, n, 1))
                self._add(
                    (b, h, n, entries), (h * n * entries, n * entries, entries, 1)
                )

    def _add(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.places.append((shape, strides, self.end))
        self.end += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT

    def empty(self, device: torch.device) -> Tensor:
        """Return uninitialized memory for all tables up to the end of these."""
        return torch.empty(self.end, dtype=torch.int32, device=device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        return [buffer.as_strided(*place) for place in self.places]
