"""Blocks that tables list are cut to the columns that a program's rows see."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import flexc


def scattered(b, h, q_idx, kv_idx):
    """A few columns of a block, none of most, and of some rows none at all."""
    return ((q_idx * 7 + kv_idx * 3) % 61 == 5) & (q_idx % 5 != 2) & (kv_idx > 40)


def corners(b, h, q_idx, kv_idx):
    """The first column of a block, and the last."""
    return (kv_idx % 64 == 0) | (kv_idx % 64 == 63) | (kv_idx == q_idx)


@pytest.mark.parametrize("mask_mod", [scattered, corners])
@pytest.mark.parametrize("kv_len", [1, 64, 200])
@pytest.mark.parametrize("block", [16, 48, 128])
def test_listed_blocks_equal_the_mask(mask_mod, kv_len, block):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, length, 16, generator=generator)
        for length in (130, kv_len, kv_len)
    )
    blocks = create_block_mask(
        mask_mod, 1, 1, 130, kv_len, device="cpu", BLOCK_SIZE=block
    )

    def attend(q, k, v):
        return flexc.flex_attention(q, k, v, block_mask=blocks)

    out = attend(q, k, v)
    index = torch.arange(130)[:, None], torch.arange(kv_len)[None]
    live = mask_mod(0, 0, *index)
    scores = (q.double() @ k.double().mT / 4).masked_fill(~live, -torch.inf)
    expected = torch.softmax(scores, -1).nan_to_num(0) @ v.double()
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)
