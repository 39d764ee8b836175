"""`flexc.debug(check_reads=True)`: reads out of range and NaN, by the mod's line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CapturedIndexError, NotANumberError, OptionError

N = 40
Q, K, V = (torch.randn(2, 2, N, 16) for _ in range(3))
TABLE = torch.rand(8)
INDEX = torch.arange(N) // 4
"""Numbers of 0 to 9: two of them lie outside of the table."""


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with flexc.debug(check_reads=True):
        yield


def line_of(mod: Callable[..., Any]) -> str:
    return f"test_debug.py:{mod.__code__.co_firstlineno + 1}"


def loaded(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + TABLE[INDEX[k]]


def negative(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + TABLE[INDEX[k] - 20]


def logarithm(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + torch.log((q - k) / 8)


def infinite(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + 1 / (q - k)


HOLED = torch.where(torch.arange(N) == 5, torch.nan, 1.0)


def holed(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s * HOLED[k]


def in_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return TABLE[INDEX[q]] > 0


@pytest.mark.parametrize("mod", [loaded, negative])
def test_reads_out_of_range(mod: Any) -> None:
    with pytest.raises(CapturedIndexError, match=r"TABLE has 8 elements") as raised:
        flexc.flex_attention(Q, K, V, mod)
    assert line_of(mod) in str(raised.value)


def test_reads_of_masks() -> None:
    with pytest.raises(CapturedIndexError, match=r"q_idx 39") as raised:
        flexc.flex_attention(Q, K, V, mask_mod=in_mask)
    assert line_of(in_mask) in str(raised.value)


@pytest.mark.parametrize(
    ("mod", "says"),
    [
        (logarithm, r"log.* is nan at b 0, h 0, q_idx 0, kv_idx 1,"),
        (infinite, r"is inf at b 0, h 0, q_idx 0, kv_idx 0,"),
        (holed, r"HOLED\[kv_idx\] is nan at b 0, h 0, q_idx 0, kv_idx 5"),
    ],
)
def test_numbers(mod: Any, says: str) -> None:
    with pytest.raises(NotANumberError, match=says) as raised:
        flexc.flex_attention(Q, K, V, mod)
    assert line_of(mod) in str(raised.value)


HIDING: tuple[tuple[Any, Any], ...] = (
    (loaded, lambda b, h, q, k: k < 32),
    (logarithm, lambda b, h, q, k: q > k),
    (lambda *a: torch.where(a[4] < 32, loaded(*a), a[0]), None),
    (lambda *a: torch.where(a[3] > a[4], logarithm(*a), -torch.inf), None),
    (None, lambda b, h, q, k: (q < 32) & (TABLE[INDEX[q]] > 0)),
    (lambda s, b, h, q, k: s - torch.inf, None),
)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("mods", HIDING)
def test_pairs_that_do_not_count(mods: tuple[Any, Any], blocks: bool) -> None:
    """What the mask or `where` hides may be read, and -inf is a score."""
    score, mask = mods
    given: dict[str, Any] = {"mask_mod": mask}
    if blocks and mask is not None:
        found = flexc.create_block_mask(mask, None, None, N, N, "cpu", BLOCK_SIZE=16)
        given = {"block_mask": found}
    out = flexc.flex_attention(Q, K, V, score, **given)
    with flexc.debug(check_reads=False):
        torch.testing.assert_close(out, flexc.flex_attention(Q, K, V, score, **given))


FLAGS: tuple[Callable[..., Any], ...] = (
    lambda b, h, q, k: (TABLE[INDEX[q] + 8] > 0) & (TABLE[INDEX[k] + 8] > 0),
    lambda b, h, q, k: (TABLE[INDEX[q]] >= 0) | (TABLE[INDEX[k]] >= 0),
    lambda b, h, q, k: (
        (TABLE[INDEX[q]] > 0) & ((TABLE[INDEX[q] + 1] > 0) | (TABLE[INDEX[k]] > 0))
    ),
    lambda b, h, q, k: ~((TABLE[INDEX[q]] <= 0) | (TABLE[INDEX[q] + 1] <= 0)),
)


@pytest.mark.parametrize("mask", FLAGS)
def test_a_wrong_read_excuses_no_other(mask: Any) -> None:
    with pytest.raises(CapturedIndexError, match=r"TABLE has 8 elements"):
        flexc.flex_attention(Q, K, V, mask_mod=mask)


EXCUSED: tuple[Callable[..., Any], ...] = (
    lambda b, h, q, k: (TABLE[INDEX[q]] > 0) & (TABLE[INDEX[k]] > 0) & (q + k < 32),
    lambda b, h, q, k: (q >= 32) | (k >= 32) | (TABLE[INDEX[q]] > TABLE[INDEX[k]]),
)  # fmt: skip


@pytest.mark.parametrize("mask", EXCUSED)
def test_a_right_flag_excuses_wrong_reads(mask: Any) -> None:
    flexc.flex_attention(Q, K, V, mask_mod=mask)


def test_what_is_given_is_not_the_mods_fault() -> None:
    query = Q.clone()
    query[0, 0, 3, 0] = torch.nan
    out: Any = flexc.flex_attention(query, K, V, lambda s, *a: s * 2)
    assert out[0, 0, 3].isnan().all()


@pytest.mark.parametrize("sizes", [*itertools.product((0, 1, 7), (0, 1, 40))], ids=str)
def test_small_calls_with_shared_heads(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    query = torch.randn(2, 4, rows, 16, dtype=torch.bfloat16, requires_grad=True)
    key, value = (x[:, :, :columns].bfloat16() for x in (K, V))
    out: Any = flexc.flex_attention(
        query, key, value, lambda s, b, h, q, k: s + TABLE[h], enable_gqa=True
    )
    out.sum().backward()
    assert out.shape == query.shape
    if columns > 36 and rows:
        with pytest.raises(CapturedIndexError):
            flexc.flex_attention(query, key, value, loaded, enable_gqa=True)


def test_the_switch() -> None:
    with flexc.debug(check_reads=False):
        flexc.flex_attention(Q, K, V, loaded)
        flexc.debug(check_reads=True)
        with pytest.raises(CapturedIndexError):
            flexc.flex_attention(Q, K, V, loaded)
    with pytest.raises(OptionError, match="check_reads expects True or False"):
        flexc.debug(check_reads=3)  # type: ignore[arg-type]
    with pytest.raises(CapturedIndexError):
        flexc.flex_attention(Q, K, V, loaded)


def test_calls_in_transforms_run() -> None:
    """They are not checked: their tensors have no memory to read."""

    def loss(query: Tensor) -> Tensor:
        found: Any = flexc.flex_attention(query, K, V, lambda s, b, h, q, k: s * 2)
        return found.sum()

    assert torch.func.grad(loss)(Q).shape == Q.shape


def test_many_pairs_are_checked_in_parts() -> None:
    q = torch.randn(1, 1, 2049, 8)
    flexc.flex_attention(q, q, q, mask_mod=lambda b, h, q, k: q >= k)
    late = torch.arange(2049) - 2040
    with pytest.raises(CapturedIndexError):
        flexc.flex_attention(q, q, q, lambda s, b, h, q, k: s + TABLE[late[q] * 1])


def test_a_context_is_entered_again_and_left_in_another_thread() -> None:
    flexc.debug(check_reads=False)
    again = flexc.debug(check_reads=True)
    for _ in range(2):
        with again, pytest.raises(CapturedIndexError):
            flexc.flex_attention(Q, K, V, loaded)
        flexc.flex_attention(Q, K, V, loaded)
    with again, ThreadPoolExecutor(1) as pool:
        pool.submit(flexc.flex_attention, Q, K, V, loaded).result()
