"""Calls with more and more keys, as those of a cache that grows."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import flexc
from flexc.errors import CapturedIndexError, DivisionByZeroError, ShapeError
from flexc.runtime import growing
from flexc.runtime.attention.call import Attention, Outputs, read_signature
from flexc.runtime.attention.run import CPU_KEYS
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.replay import repeats
from flexc.runtime.tapes.recorder import Recorder
from flexc.runtime.tapes.tape import Address, Prepared
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


@pytest.fixture(autouse=True)
def no_calls() -> None:
    repeats.KNOWN.clear()
    growing.clear()


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


def branching(position: int, window: int) -> Callable[..., Tensor]:
    """Python decides by a captured integer."""

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = k <= q + position
        return near & (k > q + position - window) if window > 0 else near

    return mask


def powered(position: int, window: int) -> Callable[..., Tensor]:
    """Python computes with a captured integer in ways that a trace fixes."""
    return lambda b, h, q, k: k <= min(position, 25) + 2 ** min(max(window, 0), 3)


def counted(position: int, window: int) -> Callable[..., Tensor]:
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = k <= q + position
        for i in range(max(window, 0)):
            found = found & (k != 2 * i + 1)
        return found

    return mask


@pytest.mark.parametrize("mask", [branching, powered, counted])
@torch.no_grad()
def test_traces_that_depend_on_captured_integers(mask: Callable[..., Any]) -> None:
    buffers = tensors(40)
    windows = [5, 5, 5, -1, 3, 0, 5, 2, 1]
    steps = [(20 + i, 19 + i, w) for i, w in enumerate(windows)]
    mods = [{"mask_mod": mask(position, w)} for _, position, w in steps]
    expected = [
        fresh(buffers, n, viewed, **m) for (n, *_), m in zip(steps, mods, strict=True)
    ]
    for (length, *_), own, right in zip(steps, mods, expected, strict=True):
        for _ in range(2):
            assert torch.equal(decode(buffers, length, viewed, **own), right)


@torch.no_grad()
def test_errors_are_those_of_other_calls() -> None:
    query, key, value = buffers = tensors(40)
    for length in (20, 20, 21, 21, 22):
        decode(buffers, length, viewed)
    with pytest.raises(ShapeError, match="length"):
        flexc.flex_attention(query, key[:, :, :25], value[:, :, :1], enable_gqa=True)
    assert not decode(buffers, 0, viewed).any()

    def divided(n: int) -> Any:
        return lambda s, b, h, q, k: s + k % n

    for length in (20, 20, 21, 21, 22):
        decode(buffers, length, viewed, score_mod=divided(length))
    with pytest.raises(DivisionByZeroError):
        decode(buffers, 23, viewed, score_mod=divided(0))


@torch.no_grad()
def test_threads_share_tapes() -> None:
    buffers = tensors(150)
    lengths = range(2, 150)

    def mods(n: int) -> dict[str, Any]:
        return {"score_mod": lambda s, b, h, q, k: torch.where(k < n // 2, s, s / 2)}

    expected = {n: fresh(buffers, n, viewed, **mods(n)) for n in lengths}
    wrong: list[int] = []

    def work() -> None:
        with torch.no_grad():
            for n in [m for m in lengths for _ in range(3)]:
                if not torch.equal(decode(buffers, n, viewed, **mods(n)), expected[n]):
                    wrong.append(n)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_large_queries_are_not_held() -> None:
    query = torch.randn(1, 4, 1 << 16, 16)[:, :, -1:]
    _, *keys = tensors(40)
    with torch.no_grad():
        for length in (20, 20, 21, 21, 22):
            decode([query, *keys], length, viewed)
    (calls,) = growing._known._values.values()
    held = calls[0]._blank.query.untyped_storage()
    assert held.nbytes() <= 64


@given(st.data())
def test_the_facts_of_keys_determine_a_build(data: st.DataObject) -> None:
    """Together with those of the query: calls of equal facts have equal builds."""
    dim = data.draw(st.sampled_from([8, 16]))
    memory = torch.zeros(1 << 16)
    untouched = torch.empty((1 << 31) + 200, dtype=torch.int8)

    def rows(length: int) -> Tensor:
        step = data.draw(st.sampled_from([dim, dim + 4, dim + 1]))
        heads = data.draw(st.sampled_from([step * length, step * length + 1]))
        first = data.draw(st.sampled_from([0, 0, 4, 1]))
        shape = (1, 2, length, dim)
        return memory.as_strided(shape, (2 * heads, heads, step, 1), first)

    query = rows(1)
    builds: dict[Any, Any] = {}
    for _ in range(6):
        length = data.draw(st.integers(1, 200))
        key = rows(length)
        value = data.draw(st.sampled_from([key, key.clone(), rows(length)]))
        step = data.draw(st.sampled_from([length, (1 << 31) - length - 1, 1 << 31]))
        table = untouched.as_strided((2, length), (step, 1))
        mods = read_signature(tabled(table)["score_mod"], None, query.device)
        call = Attention(
            query, key, value, 0.25, None, mods, Outputs(), "cpp", NO_CHOICES
        )
        assert builds.setdefault(call.key_facts(), call.build()) == call.build()


def test_tensor_maps_hold_sizes(recorded: list[Recorder]) -> None:
    """Their sizes are values, which move other values from their arguments' places."""

    class Launcher:
        def launch(self, *values: Any) -> None: ...

    query, key, _ = operands = tensors(8)
    for make in (None, lambda address: address):
        with Recorder(operands, growing.KEYS) as recorder:
            values = [0, 8, 7, 7] if make else [0, 8]
            addresses = (Address(0, 0, make),)
            recorder.launch(
                Prepared(Launcher(), values, addresses, False),
                [key, 8],
                lambda: [None, (key, "dim", 2, 1)],
            )
        tape = recorder.tape([query], query.device)
        assert tape is not None
        assert tape.grows == (make is None)
        assert ("shape" in tape.source) == (make is None)


def tabled(table: Tensor) -> dict[str, Any]:
    """A bias by head and key."""
    return {"score_mod": lambda s, b, h, q, k: s + table[h, k]}


def kept(table: Tensor) -> dict[str, Any]:
    """A mask that reads a tensor, as that of padding does."""
    return {"mask_mod": lambda b, h, q, k: table[0, k] > 0}


def counted_back(table: Tensor) -> dict[str, Any]:
    """A bias whose index is computed from a size, in Python."""
    return {"score_mod": lambda s, b, h, q, k: s + table[h, table.size(1) - 1 - k]}


TABLES: list[Callable[[Tensor, int], Tensor]] = [
    lambda table, n: table[:, :n].clone(),
    lambda table, n: table[:, :n],
    lambda table, n: table[:, 1 : n + 1],
    lambda table, n: table[:1, :n].expand(4, n),
    lambda table, n: table.mT[:n].contiguous().mT,
]
"""Tables (4, n) of n keys, in several layouts."""


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("mods", [tabled, kept])
@torch.no_grad()
def test_captured_tensors_grow_too(
    recorded: list[Recorder],
    mods: Callable[[Tensor], dict[str, Any]],
    table: Callable[[Tensor, int], Tensor],
) -> None:
    buffers, whole = tensors(40), torch.randn(4, 48)
    given = {n: table(whole, n) for n in range(5, 40)}
    expected = {n: fresh(buffers, n, joined, **mods(t)) for n, t in given.items()}
    recorded.clear()
    for length, right in expected.items():
        for _ in range(2):
            found = decode(buffers, length, joined, **mods(given[length]))
            assert torch.equal(found, right)
    assert len(recorded) == 2


@torch.no_grad()
def test_sizes_that_python_computes_with() -> None:
    buffers, whole = tensors(40), torch.randn(4, 48)
    for length in (20, 21, 22, 23, 40, 15):
        mods = counted_back(whole[:, :length])
        right = fresh(buffers, length, viewed, **mods)
        for _ in range(2):
            assert torch.equal(decode(buffers, length, viewed, **mods), right)


@torch.no_grad()
def test_parameters_of_which_mods_read_the_size_alone() -> None:
    buffers, weight = tensors(40), torch.nn.Parameter(torch.randn(7, 3))

    def sized(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + weight.shape[0] * 0.1 * k

    for length in (20, 21, 22, 23):
        right = fresh(buffers, length, viewed, score_mod=sized)
        for _ in range(2):
            found = decode(buffers, length, viewed, score_mod=sized)
            assert torch.equal(found, right)


@torch.no_grad()
def test_reads_of_growing_calls_are_checked() -> None:
    buffers, table = tensors(60), torch.randn(4, 40)
    for length in (20, 20, 21, 21, 22, 30, 40):
        decode(buffers, length, viewed, **tabled(table))
    for length, short in ((41, table), (30, table[:, :29])):
        with pytest.raises(CapturedIndexError):
            decode(buffers, length, viewed, **tabled(short))


@pytest.mark.parametrize(("queries", "tapes"), [(1, 3), (16, 5)])
@torch.no_grad()
def test_calls_whose_blocks_are_planned_have_tapes_of_their_own(
    recorded: list[Recorder], queries: int, tapes: int
) -> None:
    """From 2048 keys on, a query's keys are split, or blocks of 16 are planned."""
    query = torch.randn(1, 32, queries, 8)
    stored = torch.randn(1, 32, 2100, 8)
    lengths = [1000, 1010, 1020, 2046, 2047, 2048, 2049, 2050, 1030]
    steps = torch.arange(2100) // 7 * 7

    def odd(first: Tensor) -> Callable[..., Tensor]:
        return lambda b, h, q, k: (k * k) % 7 + first[k] % 3 != q % 5

    for length in lengths:
        key, mask = stored[:, :, :length], odd(steps[:length].clone())
        right = attention(query, key, key, None, mask).out
        for _ in range(2):
            found: Any = flexc.flex_attention(query, key, key, mask_mod=mask)
            torch.testing.assert_close(found.double(), right, atol=2e-6, rtol=1e-5)
    assert len(recorded) == tapes
