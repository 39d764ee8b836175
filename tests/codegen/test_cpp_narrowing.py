"""Blocks that tables list are cut to the columns that a program's rows see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from tests.support.dense_gradients import attention


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
    assert isinstance(out, Tensor)
    expected = attention(q.double(), k.double(), v.double(), mask_mod=mask_mod).out
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("mask_mod", [scattered, corners])
@pytest.mark.parametrize(
    "wants", [(True, True, True), (True, False, False), (False, True, True)]
)
def test_gradients_of_listed_blocks(mask_mod, wants):
    """In one pass, by rows alone and by columns alone."""
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(1, 2, length, 16, generator=generator, requires_grad=wanted)
        for length, wanted in zip((130, 200, 200), wants, strict=True)
    ]
    blocks = create_block_mask(mask_mod, 1, 1, 130, 200, device="cpu", BLOCK_SIZE=48)
    query, key, value = inputs
    out = flexc.flex_attention(query, key, value, block_mask=blocks)
    assert isinstance(out, Tensor)
    cotangent = torch.randn(out.shape, generator=generator)
    out.backward(cotangent)

    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    query, key, value = exact
    attention(query, key, value, mask_mod=mask_mod).out.backward(cotangent.double())
    for found, expected in zip(inputs, exact, strict=True):
        if found.grad is not None and expected.grad is not None:
            torch.testing.assert_close(
                found.grad.double(), expected.grad, atol=5e-6, rtol=5e-6
            )
    assert [t.grad is not None for t in inputs] == list(wants)
