"""Positions and captured integers that 32 bits do not hold, against int64 math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import i1, i32

import flexc
from flexc.passes import pipelines
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.kernels import (
    driver,
    proofs,
)
from flexc.runtime.kernels.build import NO_CALL, Build
from flexc.runtime.replay import repeats
from tests.support.pairwise import in_turn
from tests.support.reference import MaskMod, ScoreMod
from tests.unit.frontend.evaluate import import_mods

BACKENDS = ["cpp", "eager", pytest.param("triton", marks=pytest.mark.interpreted)]

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


def squares_from(offset: int) -> Mods:
    return masked(lambda q, k: (q + offset) * (q + offset) >= k)


def shifted(by: int) -> Mods:
    return masked(lambda q, k: q + by >= k)


BEYOND, BELOW, LARGE, SHIFT = 2**40, -(2**40), 46_341, 35

TABLE = torch.arange(-8, 8).roll(8)
LOADED = torch.arange(12, dtype=torch.int32) - 5

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
    "literal-offset": masked(lambda q, k: q + 2**40 >= k + 2**40 + 1),
    "literal-bound": masked(lambda q, k: (q < 2**35) & (q - 2**31 <= k - 2**31)),
    "literal-bits": masked(lambda q, k: (~q & 0xFFFFFFFF) > (~k & 0xFFFFFFFF) - 2),
    "literal-negative": masked(lambda q, k: (q - k) * -(2**31) <= 2**33),
    "literal-clamp": masked(lambda q, k: (q * BEYOND).clamp(max=2**41) >= k * BEYOND),
    "literal-choice": masked(lambda q, k: torch.where(q > 3, q, 2**35) >= k),
    "literal-tensor": masked(lambda q, k: q + torch.tensor(2**40) >= k + 2**40),
    "hash": masked(lambda q, k: ((q * 2654435761) & 0xFFFFFFFF) % 7 <= k % 5),
    "hash-of-both": masked(lambda q, k: ((q * 0x9E3779B1 ^ k) >> 3) % 5 != 0),
    "hash-that-wraps": masked(lambda q, k: (q * 0x9E3779B97F4A7C15 ^ k) >> 60 < 3),
    "shift-far-left": masked(lambda q, k: (q << 33) >= (k << 33) - (1 << 34)),
    "shift-out": masked(lambda q, k: (q << 63) + k >= -(q << 62)),
    "shift-far-right": masked(lambda q, k: (q >> 40) + (-k >> 63) + q % 3 >= 0),
    "shift-product": masked(lambda q, k: (q * BEYOND) >> 38 >= k),
    "shift-by-captured": masked(lambda q, k: (q << SHIFT) >> SHIFT - 1 >= k),
    "shift-by-position": masked(lambda q, k: (q << k * 3) >= (k << 40)),
    "shift-past-all": masked(lambda q, k: (q << 64) + (-q >> 64) + q >= k),
    "cast": masked(lambda q, k: (q * LARGE * LARGE).to(torch.int32) >= k),
    "cast-int": masked(lambda q, k: (q * LARGE * LARGE).int() >= (k << 29).int()),
    "cast-short": masked(lambda q, k: (q * 9999).to(torch.int16) >= k * 9999),
    "cast-index": masked(lambda q, k: TABLE[(q << 28).int() >> 28] >= k),
    "cast-of-plain": masked(lambda q, k: q.int() * LARGE * LARGE >= k.int()),
    "cast-to-long": masked(lambda q, k: q.long() * LARGE * LARGE >= k.long() << 31),
    "sign": masked(lambda q, k: torch.sign((q - k) << 40) * BEYOND >= -k),
    "power": masked(lambda q, k: q**10 >= k**10),
    "loaded-literal": masked(lambda q, k: LOADED[q] * 2**30 + 7 >= k),
    "loaded-meets": masked(lambda q, k: LOADED[q] * 2**30 + (q + 7) >= k),
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
    "hash": masked(lambda q, k: ((q * 2654435761 ^ k) & 0xFFFFFFFF) % 7 == 0),
    "cast": masked(lambda q, k: (q * q).to(torch.int32) >= (k * k).int()),
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


@pytest.mark.parametrize(
    ("name", "lengths"), in_turn(list(LONG), [(MANY, 64), (64, MANY)])
)
def test_long_sequences(name: str, lengths: tuple[int, int]) -> None:
    check(LONG[name], problem(*lengths))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHORT)
def test_large_numbers(name: str, backend: str) -> None:
    check(SHORT[name], problem(12, 20, batch=3), backend=backend)


def test_large_offsets_into_captures() -> None:
    """Indices beyond 32 bits are out of range, and not what is left of them."""
    table = torch.randn(40)

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[torch.clamp(q * BEYOND + k, -3, 39)]

    check((score_mod, None), problem(12, 20))


def forget() -> None:
    driver._kernels.clear()
    driver._traced.clear()
    repeats.KNOWN.clear()


def kernels(mods: Mods, lengths: list[int]) -> int:
    """How many kernels calls of some lengths need."""
    forget()
    for length in lengths:
        check(mods, problem(length, 16))
    return len(driver._kernels)


def test_one_kernel_where_nothing_can_overflow() -> None:
    assert kernels(masked(lambda q, k: q + 64 - k * 2 >= 0), [40, 36, 50_000]) == 1


def test_a_kernel_more_where_something_does() -> None:
    squares = scored(lambda q, k: (q * q - k * k) * 1e-10)
    assert kernels(squares, [40, 36, 40_000]) == 1
    assert kernels(squares, [40, 50_000, 60_000]) == 2


@pytest.mark.parametrize(
    "mods",
    [
        masked(lambda q, k: q.int() * 64 + k.to(torch.int32) >= q.int()),
        masked(lambda q, k: (q.long() - k.long()).to(torch.int64) >= -3),
    ],
    ids=["int32", "int64"],
)
def test_casts_of_positions_are_free(mods: Mods) -> None:
    """Nothing but the arithmetic is left, of i32."""
    built, _ = import_mods(*mods)
    pipelines.run(pipelines.to_simple_flex(), Context(), built.module)
    mask = proofs.attention_of(built.module).mask_mod
    assert not [o for o in mask.block.ops if o.name in ("arith.extsi", "arith.trunci")]
    assert all(r.type in (i1, i32) for o in mask.block.ops for r in o.results)


def proved(
    mods: Mods, calls: list[tuple[int, list[Any]]]
) -> tuple[list[proofs.Proofs], int]:
    """What is proved on a GPU for key lengths and captures, and in how many goes."""
    built, _ = import_mods(*mods)
    prover = proofs.Prover(built.module, Build(NO_CALL, "triton", "cuda", NO_OPTIONS))
    found = [prover((2, 3, 1, length), given) for length, given in calls]
    return found, prover.holds.cache_info().misses


def test_steps_of_decoding_share_proofs() -> None:
    steps = [(n, [n - 1]) for n in range(1025, 2049)]
    found, goes = proved(squares_from(7), steps)
    assert all(p.indices_fit for p in found)
    assert goes <= 2


def test_what_holds_of_one_call_alone_is_proved_too() -> None:
    """The squares of some numbers of 16 bits fit, and those of others do not."""
    calls = [(8, [40_000]), (8, [50_000]), (8, [-40_000]), (8, [0]), (8, [1])]
    found, _ = proved(squares_from(7), calls)
    assert [p.indices_fit for p in found] == [True, False, True, True, True]
    calls = [(46_340, []), (46_400, [])]
    found, _ = proved(masked(lambda q, k: k * k >= q), calls)
    assert [p.indices_fit for p in found] == [True, False]


def test_captures_are_proved_inside_for_their_own_sizes() -> None:
    table = torch.zeros(1)
    mods: Mods = (lambda s, b, h, q, k: s + table[k], None)
    sizes = [(600, 600), (601, 600), (600, 1024), (1000, 1024), (1025, 1024)]
    calls: list[tuple[int, list[Any]]] = [(n, [torch.zeros(m)]) for n, m in sizes]
    found, goes = proved(mods, calls)
    assert [p.captures_inside for p in found] == [True, False, True, True, False]
    assert goes == 6


def test_ordinary_windows_share_a_kernel() -> None:
    forget()
    for window in (3, 5, -2, BEYOND):
        check(within(window), problem(12, 20))
    assert len(driver._kernels) == 2
