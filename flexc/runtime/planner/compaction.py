"""From the classes of blocks to torch's tables, in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor

from flexc.runtime.planner.classes import FULL, PARTIAL, UNKNOWN

Table = tuple[Tensor, Tensor]
"""How many blocks each row has, and which."""


def live_kinds(classes: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks are partial, or may be, and which are full."""
    return (classes == PARTIAL) | (classes == UNKNOWN), classes == FULL


def ordered(live: Tensor) -> Table:
    """Each row's live columns in ascending order, and then the others.

    What torch sorts for; here every column counts those before it.
    """
    columns = live.size(-1)
    column = torch.arange(columns, dtype=torch.int32, device=live.device)
    before = live.cumsum(-1, dtype=torch.int32)
    counts = before[..., -1].contiguous()
    dead = column - before + counts[..., None]
    place = torch.where(live, before - 1, dead)
    indices = torch.empty_like(place)
    indices.scatter_(-1, place.to(torch.int64), column.expand_as(place))
    return counts, indices


def listed(live: Tensor) -> Table:
    """Each row's live columns, in a table as wide as the fullest row. Of a CPU."""
    counts = live.sum(-1, dtype=torch.int32)
    width = max(1, int(counts.max()))
    flat = live.flatten(0, -2)
    rows, columns = flat.nonzero(as_tuple=True)
    starts = counts.flatten().cumsum(0, dtype=torch.int64) - counts.flatten()
    place = torch.arange(rows.numel()) - starts[rows]
    indices = torch.zeros((flat.size(0), width), dtype=torch.int32)
    indices[rows, place] = columns.to(torch.int32)
    return counts, indices.view(*live.shape[:-1], width)


def stacked(tables: list[Table]) -> Table:
    """Tables of consecutive rows as one."""
    width = max(indices.size(-1) for _, indices in tables)
    padded = [
        torch.nn.functional.pad(indices, (0, width - indices.size(-1)))
        for _, indices in tables
    ]
    return torch.cat([counts for counts, _ in tables], -1), torch.cat(padded, -2)
