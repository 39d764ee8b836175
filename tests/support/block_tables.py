"""Comparing BlockMasks: all tables, or the blocks that they list."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

TABLES = tuple(
    f"{full}{side}_{what}"
    for full in ("", "full_")
    for side in ("kv", "q")
    for what in ("num_blocks", "indices")
)


def differences(ours: BlockMask, theirs: BlockMask) -> list[str]:
    """The tables whose dtype, shape or elements are not the same."""
    return [
        name
        for name in TABLES
        if (a := getattr(ours, name)).dtype != (b := getattr(theirs, name)).dtype
        or a.shape != b.shape
        or not torch.equal(a, b)
    ]


def listed_blocks(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Which blocks a table lists."""
    used = torch.arange(indices.size(-1), device=indices.device) < counts[..., None]
    places = torch.where(used, indices.to(torch.int64), columns)
    blocks = counts.new_zeros((*counts.shape, columns + 1), dtype=torch.bool)
    return blocks.scatter(-1, places, True)[..., :columns]


def dense_blocks(mask: BlockMask) -> tuple[Tensor, Tensor]:
    """Which blocks are live, and which of them are full."""
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    columns = mask.kv_indices.size(-1)
    partial = listed_blocks(mask.kv_num_blocks, mask.kv_indices, columns)
    full = listed_blocks(mask.full_kv_num_blocks, mask.full_kv_indices, columns)
    return partial | full, full
