"""Tables as wide as the fullest row, on a CPU: what planning at great length needs."""

from __future__ import annotations

import torch
from torch import Tensor

from flexc.runtime.planner.classes import FULL, PARTIAL, UNKNOWN
from flexc.runtime.planner.ordering import Table


def live_kinds(classes: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks are partial, or may be, and which are full."""
    return (classes == PARTIAL) | (classes == UNKNOWN), classes == FULL


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
