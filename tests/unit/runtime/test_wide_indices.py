"""Positions and captured integers that 32 bits do not hold, against int64 math."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.runtime import call, driver
from tests.reference import MaskMod, ScoreMod

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS = ["triton"] if INTERPRETING else ["cpp", "eager"]

MANY = 100_000

Mods = tuple[ScoreMod | None, MaskMod | None]


def masked(mask: Callable[[Any, Any], Tensor]) -> Mods:
    """A mask mod of positions alone."""
    return None, lambda b, h, q, k: mask(q, k)


def scored(term: Callable[[Any, Any], Tensor]) -> Mods:
    """A score mod that adds a small term of positions alone."""
    return lambda s, b, h, q, k: s + term(q, k), None


def within(window: int) -> Mods:
    return masked(lambda q, k: (q - k <= window) & (k - q <= window))


def shifted(by: int) -> Mods:
    return masked(lambda q, k: q + by >= k)


BEYOND, BELOW, LARGE = 2**40, -(2**40), 46_341

SHORT: dict[str, Mods] = {
    "window-beyond": within(BEYOND),
    "window-below": within(BELOW),
    "window-ordinary": within(3),
    "window-largest": within(2**31 - 1),
    "window-past-largest": within(2**31),
    "window-lowest": within(-(2**31)),
    "shift-beyond": shifted(BEYOND),
    "shift-below": shifted(BELOW),
    "half-of-beyond": masked(lambda q, k: q - k <= BEYOND // 2),
    "equal-to-wrapped": masked(lambda q, k: (q == k + 2 * BEYOND) | (k > q)),
    "remainder": masked(lambda q, k: (q * BEYOND) % 3 == k % 3),
    "divided": masked(lambda q, k: (q * BEYOND) // (BEYOND // 2) >= k),
    "product": masked(lambda q, k: q * LARGE * LARGE >= k * LARGE * LARGE - 5),
    "bits": masked(lambda q, k: ((q * LARGE * LARGE) ^ (k << 30)) >> 29 <= 7),
    "negative-bits": masked(lambda q, k: ((~q * LARGE * LARGE) | k) < BELOW // 128),
    "score": scored(lambda q, k: (q * LARGE * LARGE - k * LARGE * LARGE) * 1e-10),
    "user-cast": masked(lambda q, k: (q.long() * BEYOND).to(torch.int32) >= k - 1),
    "select": masked(lambda q, k: torch.where(q > k, q * BEYOND, -k) <= q - 4),
    "distance": masked(lambda q, k: abs(q * BEYOND - k * BEYOND) <= 2 * BEYOND),
    "batch": (None, lambda b, h, q, k: b * 2**30 + b * 2**30 + q >= k),
    "head": (lambda s, b, h, q, k: s + (b * 2**30 * 3 - h) / 2**31 * k, None),
}

LONG: dict[str, Mods] = {
    "squares": masked(lambda q, k: q * q >= k * k),
    "squares-of-keys": masked(lambda q, k: q * q <= k * k),
    "score-of-squares": scored(lambda q, k: (q * q - k * k).float() * 1e-10),
    "interleaved": masked(lambda q, k: (q * 65536 + k) % 3 != 0),
    "interleaved-order": masked(lambda q, k: q * 65536 + k >= k * 65536 + q),
    "quotient": masked(lambda q, k: (q * q) // 100_000 >= (k * k) // 70_000),
}


def dense(mods: Mods, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention in double precision, of int64 positions."""
    score_mod, mask_mod = mods
    scores = query.double() @ key.double().mT / query.size(3) ** 0.5
    axes = enumerate(scores.shape)
    where = [torch.arange(n).reshape([-1] + [1] * (3 - d)) for d, n in axes]
    if score_mod is not None:
        scores = score_mod(scores, *where).double()
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*where), -torch.inf)
    return scores.softmax(-1).nan_to_num() @ value.double()


def check(mods: Mods, tensors: tuple[Tensor, Tensor, Tensor], **kwargs: Any) -> None:
    query, key, value = tensors
    expected = dense(mods, query, key, value)
    score_mod, mask_mod = mods
    got: Any = flexc.flex_attention(
        query, key, value, score_mod, mask_mod=mask_mod, **kwargs
    )
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def problem(q_len: int, kv_len: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(batch, 1, q_len, 16)
    key, value = torch.randn(2, batch, 1, kv_len, 16)
    return query, key, value


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize(("q_len", "kv_len"), [(MANY, 64), (64, MANY)])
def test_long_sequences(name: str, q_len: int, kv_len: int) -> None:
    check(LONG[name], problem(q_len, kv_len))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHORT)
def test_large_numbers(name: str, backend: str) -> None:
    check(SHORT[name], problem(12, 20, batch=3), backend=backend)


@pytest.mark.skipif(INTERPRETING, reason="this is that process")
def test_large_numbers_in_a_process_that_interprets_triton() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, __file__, "-k", "test_large_numbers"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_large_offsets_into_captures() -> None:
    """Indices beyond 32 bits are out of range, and not what is left of them."""
    table = torch.randn(40)

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[torch.clamp(q * BEYOND + k, -3, 39)]

    check((score_mod, None), problem(12, 20))


def forget() -> None:
    driver._kernels.clear()
    call._compiled.clear()


def kernels(mods: Mods, lengths: list[int]) -> int:
    """How many kernels calls of some lengths need."""
    forget()
    for length in lengths:
        check(mods, problem(length, 16))
    return len(driver._kernels)


def test_one_kernel_where_nothing_can_overflow() -> None:
    assert kernels(masked(lambda q, k: q + 64 - k * 2 >= 0), [8, 20, 50_000]) == 1


def test_a_kernel_more_where_something_does() -> None:
    assert kernels(masked(lambda q, k: q * q >= k * k), [8, 20, 40_000]) == 1
    assert kernels(masked(lambda q, k: q * q >= k * k), [8, 50_000, 60_000]) == 2


def test_ordinary_windows_share_a_kernel() -> None:
    forget()
    for window in (3, 5, -2, BEYOND):
        check(within(window), problem(12, 20))
    assert len(driver._kernels) == 2
