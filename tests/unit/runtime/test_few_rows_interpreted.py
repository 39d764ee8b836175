"""Calls of few queries, whose rows are heads, run by Triton's interpreter."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import flexc
from flexc.runtime.attention import run as running
from tests.support.pages import in_pages
from tests.support.pairwise import pairwise
from tests.support.reference import attention

pytest.importorskip("triton.language")

pytestmark = pytest.mark.interpreted

SLOPES = torch.rand(8)


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + SLOPES[h] * (j - i)


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i + 600


def by_head(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j >= 10 * h + i


def scattered(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j % 300 < 100 + i


CALLS: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "causal": (None, causal),
    "alibi": (alibi, causal),
    "soft-cap": (lambda s, b, h, i, j: 20 * torch.tanh(s / 20), causal),
    "mask-by-head": (alibi, by_head),
    "scattered": (None, scattered),
}


def check(
    q_len: int,
    kv_len: int,
    mods: tuple[Any, Any],
    group: int = 4,
    tables: bool = False,
    interleaved: bool = False,
    dims: tuple[int, int] = (32, 32),
) -> None:
    q = torch.randn(2, 2 * group, q_len, dims[0]).half()
    if interleaved:
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k, v = (torch.randn(2, 2, kv_len, dim).half() for dim in dims)
    given: dict[str, Any] = {"mask_mod": mods[1]}
    if tables:
        sizes = (None, None, q_len, kv_len, "cpu")
        given = {"block_mask": create_block_mask(mods[1], *sizes, BLOCK_SIZE=64)}
    with torch.no_grad():
        result: Any = flexc.flex_attention(
            *(q, k, v, mods[0]),
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
            backend="triton",
            **given,
        )
    exact = attention(q, k, v, *mods, enable_gqa=True)
    for got, want in ((result[0], exact.out), (result[1].lse, exact.lse)):
        torch.testing.assert_close(got.double(), want, atol=4e-3, rtol=4e-3)
    if dims[0] == dims[1]:
        assert result[0].stride() == q.stride()


@pytest.mark.parametrize(
    ("case", "q_len", "splits"), pairwise(list(CALLS), [1, 4], [1, 5])
)
def test_heads_of_a_group(
    case: str, q_len: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "choose_splits", lambda *_: splits)
    check(q_len, 700, CALLS[case])


@pytest.mark.parametrize("q_len", [1, 3, 16])
def test_tables(q_len: int) -> None:
    for kv_len in (300, 3000):
        check(q_len, kv_len, (alibi, scattered), tables=True)


@pytest.mark.parametrize("group", [1, 5, 16])
def test_groups(group: int) -> None:
    check(2, 200, (None, causal), group)
    check(16, 200, (None, causal), group, interleaved=True)


@pytest.mark.parametrize("dims", [(80, 80), (72, 136), (200, 64)])
def test_rows_in_two_tiles(dims: tuple[int, int]) -> None:
    check(2, 200, (alibi, causal), dims=dims)


SHAPES = ((8, 1), (2, 150), (2, 150))
"""The heads and lengths of queries, keys and other values."""


@pytest.mark.parametrize("dims", [(72, 66), (64, 64), (80, 48), (144, 128)])
def test_values_in_keys(dims: tuple[int, int]) -> None:
    """Values that are a view of keys are read with them, if a tile of keys holds them.

    Equal strides do not count.
    """
    is_tile = dims != (80, 48)
    q, k, other = (torch.randn(2, h, n, dims[0]).half() for h, n in SHAPES)
    attend: Any = partial(flexc.flex_attention, enable_gqa=True, backend="triton")
    for v in (k[..., : dims[1]], other[..., : dims[1]], k[..., : dims[1]]):
        with torch.no_grad():
            got = attend(q, k, v, alibi)
            (found,) = flexc.explain(attend, q, k, v, alibi)
        is_view = v.data_ptr() == k.data_ptr()
        assert ("values in keys" in str(found)) == (is_view and is_tile)
        exact = attention(q, k, v, alibi, None, enable_gqa=True)
        torch.testing.assert_close(got.double(), exact.out, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("size", [16, 128])
def test_memory_beyond_the_keys_may_be_nan(size: int) -> None:
    """If the mask knows of positions of keys only, as lengths do."""
    q, k, v = (torch.randn(2, h, n, 32).half() for h, n in ((8, 1), (2, 384), (2, 384)))
    lengths = torch.tensor([90, 300], dtype=torch.int32)
    pages = in_pages(k, v, size)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j < lengths[b]

    exact = attention(q, k, v, None, mask, enable_gqa=True)
    for b, length in enumerate(lengths.tolist()):
        for n in range(length, 384):
            page = pages.table[b, n // size]
            pages.key[page, :, n % size] = pages.value[page, :, n % size] = torch.nan
    with torch.no_grad():
        got: Any = flexc.flex_attention(
            *(q, pages.key, pages.value),
            mask_mod=mask,
            page_table=pages.table,
            enable_gqa=True,
            backend="triton",
        )
    torch.testing.assert_close(got.double(), exact.out, atol=4e-3, rtol=4e-3)


def test_small_numbers_of_64_bits() -> None:
    """A bound of keys compares a captured number with the largest that it takes."""
    query, key = torch.randn(2, 1, 40, 16), torch.randn(2, 1, 32, 16)
    mask = flexc.causal_lower_right(40, torch.tensor([5, 32]))
    found = flexc.flex_attention(query, key, key, mask_mod=mask, backend="triton")
    expected = attention(query, key, key, mask_mod=mask).out
    torch.testing.assert_close(found, expected.float(), atol=2e-5, rtol=2e-5)
