"""Tables as wide as the fullest row, on a CPU: what planning of great lengths needs."""

from __future__ import annotations

import torch
from torch import Tensor

from flexc.runtime.planner.classes import DEAD, FULL
from flexc.runtime.planner.ordering import Table


def listed(classes: Tensor) -> tuple[Table, Table]:
    """Each row's partial (or unknown) and its full blocks, in ascending order."""
    lines = classes.flatten(0, -2)
    rows, columns = (lines != DEAD).nonzero(as_tuple=True)
    is_full = lines[rows, columns] == FULL
    lead = classes.shape[:-1]
    kinds = ((rows[kind], columns[kind]) for kind in (~is_full, is_full))
    partial, full = (table_of(*found, lead) for found in kinds)
    return partial, full


def table_of(rows: Tensor, columns: Tensor, lead: torch.Size) -> Table:
    """The table of blocks that are sorted by row."""
    counts = torch.bincount(rows, minlength=lead.numel())
    width = max(1, int(counts.max()))
    starts = counts.cumsum(0) - counts
    place = torch.arange(rows.numel()) - starts[rows]
    indices = torch.zeros((lead.numel(), width), dtype=torch.int32)
    indices[rows, place] = columns.to(torch.int32)
    return counts.to(torch.int32).view(lead), indices.view(*lead, width)


def stacked(tables: list[Table]) -> Table:
    """Tables of consecutive rows as one."""
    width = max(indices.size(-1) for _, indices in tables)
    padded = [
        torch.nn.functional.pad(indices, (0, width - indices.size(-1)))
        for _, indices in tables
    ]
    return torch.cat([counts for counts, _ in tables], -1), torch.cat(padded, -2)
