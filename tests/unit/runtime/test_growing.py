"""Calls with more and more keys, as those of a cache that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import flexc
from flexc.runtime import growing
from flexc.runtime.attention.run import CPU_KEYS
from flexc.runtime.replay import repeats
from flexc.runtime.tapes.recorder import Recorder
from tests.support.reference import attention

Layout = Callable[[Tensor, int], Tensor]
"""A function from a buffer (1, heads, most, dim) and a length to the rows so far."""


def joined(buffer: Tensor, length: int) -> Tensor:
    """Copy the rows, as `torch.cat` does: strides of heads depend on their number."""
    return buffer[:, :, :length].clone()


def viewed(buffer: Tensor, length: int) -> Tensor:
    """Return a view of a buffer of fixed size."""
    return buffer[:, :, :length]


def interleaved(buffer: Tensor, length: int) -> Tensor:
    """Copy the rows to memory in which heads alternate."""
    return joined(buffer, length).transpose(1, 2).contiguous().transpose(1, 2)


LAYOUTS: list[Layout] = [joined, viewed, interleaved]


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k >= 3


def capped(s: Tensor, *_: Tensor) -> Tensor:
    return 20 * torch.tanh(s / 20)


def biased(bias: Tensor) -> Callable[..., Tensor]:
    return lambda s, b, h, q, k: s + bias[k]


def from_key(first: int) -> Callable[..., Tensor]:
    return lambda b, h, q, k: k >= first


def scaled(factor: float) -> Callable[..., Tensor]:
    return lambda s, b, h, q, k: s * factor


MODS: list[dict[str, Any]] = [
    {},
    {"score_mod": capped},
    {"mask_mod": window},
    {"mask_mod": from_key(3), "score_mod": scaled(0.5)},
    {"return_lse": True},
]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The recorders of calls."""
    found: list[Recorder] = []
    enter = Recorder.__enter__

    def entered(self: Recorder) -> Recorder:
        found.append(self)
        return enter(self)

    monkeypatch.setattr(Recorder, "__enter__", entered)
    return found


def tensors(most: int, heads: int = 4, groups: int = 2, dim: int = 16) -> list[Tensor]:
    torch.manual_seed(most)
    sizes = (heads, 1), (groups, most), (groups, most)
    return [torch.randn(1, h, n, dim) for h, n in sizes]


def decode(buffers: list[Tensor], length: int, layout: Layout, **mods: Any) -> Any:
    query, *stored = buffers
    key, value = (layout(b, length) for b in stored)
    found: Any = flexc.flex_attention(query, key, value, enable_gqa=True, **mods)
    return found


def fresh(buffers: list[Tensor], length: int, layout: Layout, **mods: Any) -> Any:
    """The results of a call that finds no tape and leaves none."""
    repeats.KNOWN.clear()
    growing.clear()
    found = decode(buffers, length, layout, **mods)
    repeats.KNOWN.clear()
    growing.clear()
    return found


@pytest.mark.parametrize("mods", MODS)
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_one_tape_serves_all_lengths(
    recorded: list[Recorder], layout: Layout, mods: dict[str, Any]
) -> None:
    buffers = tensors(40)
    expected = {n: fresh(buffers, n, layout, **mods) for n in range(5, 40)}
    recorded.clear()
    for length, right in expected.items():
        for _ in range(2):  # The layers of a model.
            found = decode(buffers, length, layout, **mods)
            assert all(map(torch.equal, found, right))
    # The second call of the first length, and the first of the second.
    assert len(recorded) == 2
    query, key, value = buffers[0], *(b[:, :, :39] for b in buffers[1:])
    right = attention(
        query, key, value, mods.get("score_mod"), mods.get("mask_mod"), enable_gqa=True
    )
    found = decode(buffers, 39, layout, **mods)
    out, *lse = found if "return_lse" in mods else (found,)
    torch.testing.assert_close(out.double(), right.out, atol=2e-6, rtol=1e-5)
    for found in lse:
        torch.testing.assert_close(found.double(), right.lse, atol=2e-6, rtol=1e-5)


LENGTHS = [1, 2, 15, 16, 17, 127, 128, 129, 2 * CPU_KEYS - 1, 2 * CPU_KEYS]

steps = st.tuples(
    st.sampled_from([*LENGTHS, *range(20, 40), 3 * CPU_KEYS]),
    st.sampled_from(LAYOUTS),
    st.sampled_from(MODS),
    st.sampled_from([torch.float32, torch.bfloat16]),
)


@given(
    st.lists(steps, min_size=4, max_size=12),
    st.sampled_from([(4, 2, 16), (3, 3, 6), (1, 1, 33)]),
)
@torch.no_grad()
def test_any_lengths_in_any_order(
    calls: list[tuple[int, Layout, dict[str, Any], torch.dtype]],
    sizes: tuple[int, int, int],
) -> None:
    """Splits, alignment and layouts change, and the bits are those of fresh calls."""
    buffers = tensors(3 * CPU_KEYS, *sizes)

    def run(how: Any, length: int, layout: Layout, mods: Any, dtype: Any) -> Any:
        return how([b.to(dtype) for b in buffers], length, layout, **mods)

    expected = [run(fresh, *call) for call in calls]
    for call, right in zip(calls, expected, strict=True):
        for _ in range(2):
            assert all(map(torch.equal, run(decode, *call), right))


def behind(position: int, window: int) -> Callable[..., Tensor]:
    """A window of positions before the query's, which is computed for each pair."""
    return lambda b, h, q, k: (k <= q + position) & (k > q + position - window)


def behind_number(position: int, window: int) -> Callable[..., Tensor]:
    """The same with a bound that Python computes from captured numbers."""
    return lambda b, h, q, k: (k <= position) & (k > position - window)


def at(position: int, window: int) -> Callable[..., Tensor]:
    """A mask without closed-form bounds."""
    return lambda b, h, q, k: (k * k + position) % 7 < window


@pytest.mark.parametrize("mask", [behind, behind_number, at])
@torch.no_grad()
def test_captured_integers_change_with_the_length(
    recorded: list[Recorder], mask: Callable[..., Any]
) -> None:
    buffers = tensors(60)

    def mods(position: int) -> dict[str, Any]:
        return {"mask_mod": mask(position, 5)}

    # In order, then by leaps, a number that is far away, and negative ones.
    steps = [(n, n - 1) for n in range(8, 40)]
    steps += [(40, 3), (50, 44), (51, 1 << 40), (52, 0), (53, -1), (54, 20)]
    expected = [fresh(buffers, n, viewed, **mods(p)) for n, p in steps]
    recorded.clear()
    for (length, position), right in zip(steps, expected, strict=True):
        for _ in range(2):
            found = decode(buffers, length, viewed, **mods(position))
            assert torch.equal(found, right)
    if mask is behind:  # Positions of 41 bits have another kernel.
        assert len(recorded) == 3


@torch.no_grad()
def test_keys_that_are_captured_too_have_a_tape_for_each_length(
    recorded: list[Recorder],
) -> None:
    buffers = tensors(20)
    growing.clear()
    for length in range(5, 9):
        score = biased(torch.randn(length))
        query, key, value = buffers[0], *(b[:, :, :length] for b in buffers[1:])
        right = attention(query, key, value, score, enable_gqa=True).out
        for _ in range(2):
            found = decode(buffers, length, viewed, score_mod=score)
            torch.testing.assert_close(found.double(), right, atol=2e-6, rtol=1e-5)
    assert len(recorded) == 4


@torch.no_grad()
def test_calls_whose_blocks_are_planned_have_a_tape_for_each_length(
    recorded: list[Recorder],
) -> None:
    """From some length on their tables depend on the number of keys."""
    buffers = tensors(20)
    growing.clear()

    def odd(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k * k) % 7 != 3

    for length in range(5, 9):
        for _ in range(2):
            decode(buffers, length, viewed, mask_mod=odd)
    assert len(recorded) == 4
