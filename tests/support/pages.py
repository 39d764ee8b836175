"""Keys and values of sequences, put into pages in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from flexc.runtime.inputs.arguments import Pages


def random_table(batch: int, pages: int, spare: int, seed: int) -> Tensor:
    """A table of different pages, and of `spare` more that no sequence has."""
    made = torch.Generator().manual_seed(seed)
    order = torch.randperm(batch * pages + spare, generator=made)
    return order[: batch * pages].int().view(batch, pages)


def pooled(keys: Tensor, table: Tensor, size: int, spare: int = 0) -> Tensor:
    """The pages (P, H, size, E) of keys (B, H, S, E). Other rows are large numbers."""
    batch, heads, length, dim = keys.shape
    pages = table.size(1)
    whole = keys.new_full((batch, heads, pages * size, dim), 99.0)
    whole[:, :, :length] = keys
    pool = keys.new_full((table.numel() + spare, size, heads, dim), 99.0)
    split = whole.view(batch, heads, pages, size, dim).permute(0, 2, 3, 1, 4)
    pool[table.long()] = split
    return pool.transpose(1, 2)


def in_pages(key: Tensor, value: Tensor, size: int, seed: int = 0) -> Pages:
    """Keys and values, whose number the page size divides, in pages."""
    table = random_table(key.size(0), key.size(2) // size, 2, seed)
    return Pages(pooled(key, table, size, 2), pooled(value, table, size, 2), table)
