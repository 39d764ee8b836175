"""Decoding on a GPU with more and more keys, by tapes that serve many lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexc
from tests.support.reference import attention
from tests.unit.runtime.test_growing import (
    LAYOUTS,
    MODS,
    Layout,
    decode,
    fresh,
    joined,
    kept,
    tabled,
    tensors,
)

pytestmark = pytest.mark.gpu

LENGTHS = [*range(120, 135), *range(1000, 1030), *range(2040, 2060), 8192, 8200, 1]


@pytest.mark.parametrize("mods", MODS)
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_all_lengths_have_the_bits_of_fresh_calls(
    layout: Layout, mods: dict[str, Any]
) -> None:
    """The number of splits changes, and lengths of whole blocks have other kernels."""
    buffers = [b.cuda().bfloat16() for b in tensors(8200, 32, 8, 128)]
    expected = [fresh(buffers, n, layout, **mods) for n in LENGTHS]
    for length, right in zip(LENGTHS, expected, strict=True):
        for _ in range(2):
            found = decode(buffers, length, layout, **mods)
            assert all(map(torch.equal, found, right))


@pytest.mark.parametrize("mods", [tabled, kept])
@torch.no_grad()
def test_captured_tensors_grow_too(mods: Any) -> None:
    buffers = [b.cuda().bfloat16() for b in tensors(8200, 32, 8, 128)]
    whole = torch.randn(32, 8208, device="cuda")
    tables = {n: whole[:, n % 3 : n % 3 + n] for n in LENGTHS}
    expected = {n: fresh(buffers, n, joined, **mods(t)) for n, t in tables.items()}
    for length, right in expected.items():
        for _ in range(2):
            found = decode(buffers, length, joined, **mods(tables[length]))
            assert torch.equal(found, right)


def near(offset: int, window: int) -> Any:
    return lambda b, h, q, k: (q + offset >= k) & (q + offset - k < window)


def capped(cap: int) -> Any:
    return lambda s, b, h, q, k: cap * torch.tanh(s / cap)


@pytest.mark.parametrize("queries", [1, 5, 64])
@torch.no_grad()
def test_captured_integers_with_few_and_with_many_queries(queries: int) -> None:
    """Many queries have kernels whose values have other places than their arguments."""
    torch.manual_seed(queries)
    query = torch.randn(1, 4, queries, 128, device="cuda", dtype=torch.bfloat16)
    stored = torch.randn(2, 1, 4, 400, 128, device="cuda", dtype=torch.bfloat16)
    for length in range(300, 312):
        mods: list[Any] = [capped(20), near(length - queries, 90)]
        key, value = stored[:, :, :, :length]
        right = attention(query, key, value, *mods).out
        for _ in range(2):
            found: Any = flexc.flex_attention(
                query, key, value, mods[0], mask_mod=mods[1]
            )
            torch.testing.assert_close(found.double(), right, atol=8e-3, rtol=0)
