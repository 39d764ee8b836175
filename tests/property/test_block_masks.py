"""Generated masks of Python code: their BlockMasks equal torch's."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from tests.support.block_tables import dense_blocks, differences

# Few kinds of code, so that few kernels are compiled; values and sizes vary freely.


def document_mask(numbers: list[int], table: torch.Tensor) -> Any:
    window = numbers[0]

    def mask(b, h, q_idx, kv_idx):
        same = table[b, q_idx] == table[b, kv_idx]
        return same & (q_idx + window >= kv_idx)

    return mask


def strided_mask(numbers: list[int], table: torch.Tensor) -> Any:
    stride, reach = max(1, abs(numbers[0])), numbers[1]

    def mask(b, h, q_idx, kv_idx):
        near = (q_idx - kv_idx).abs() <= reach
        return near | ((kv_idx + h) % stride == 0)

    return mask


def prefix_mask(numbers: list[int], table: torch.Tensor) -> Any:
    shift = numbers[0]

    def mask(b, h, q_idx, kv_idx):
        return (kv_idx < table[b, q_idx] * shift) ^ (q_idx // 7 == kv_idx // 7)

    return mask


MASKS = (document_mask, strided_mask, prefix_mask)


@given(
    make=st.sampled_from(MASKS),
    numbers=st.lists(st.integers(-40, 40), min_size=2, max_size=2),
    lengths=st.tuples(st.integers(1, 160), st.integers(1, 160)),
    block=st.sampled_from([16, 32, (16, 64), 5]),
    step=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_equals_torch(
    make: Any,
    numbers: list[int],
    lengths: tuple[int, int],
    block: Any,
    step: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(-2, 9, (2, 161), generator=generator)
    table = starts.repeat_interleave(step, 1)[:, :160].contiguous()
    mask = make(numbers, table)
    sizes = (2, 2, *lengths)
    torchs = create_block_mask(mask, *sizes, "cpu", block)
    ours = flexc.create_block_mask(mask, *sizes, "cpu", block)
    assert differences(ours, torchs) == []
    live, full = dense_blocks(
        flexc.create_block_mask(mask, *sizes, "cpu", block, refine=False)
    )
    torchs_live, torchs_full = dense_blocks(torchs)
    assert not (torchs_live & ~live).any()
    assert not (full & ~torchs_full).any()
