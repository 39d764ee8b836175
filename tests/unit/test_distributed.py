"""Attention over several processes equals that of one."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import pickle
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import flexc
from flexc.distributed import (
    Layout,
    Machine,
    _Mods,
    context_parallel,
    context_parallel_attention,
    plan,
    shared_memory,
    transfers,
)
from flexc.distributed.layouts import MOST_RUNS, Runs, Span, carried_keys
from flexc.distributed.plans import (
    BACKWARD,
    Problem,
    Route,
    Visits,
    find_route,
)
from flexc.distributed.ranks import Parts, Regathered
from flexc.distributed.ring import Ring, RingAttention
from flexc.distributed.shared_memory import (
    SharedMemory,
    blocks_of,
    exchange,
    memory_of,
)
from flexc.distributed.transfers import dense
from flexc.errors import (
    CapturedIndexError,
    DistributedError,
    DtypeError,
    GradientError,
    OptionError,
    ShapeError,
)
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd import derivatives
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.interface import OUTPUTS, Preparation
from flexc.runtime.kernels.driver import counters
from tests.support.context_parallel import (
    FOUR,
    METHODS,
    TWO,
    WHOLE,
    Case,
    cases_that_run,
    causal,
    copy_on_a_cpu,
    four_ranks,
    leave,
    masks,
    read_rows,
    run_ranks,
    two_ranks,
)

# The first test waits for what two processes do for many.
pytestmark = pytest.mark.timeout(600)

Found = list[Any]


@pytest.fixture(scope="module")
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Found:
    folder = tmp_path_factory.mktemp("two")
    run = cases_that_run(request)
    work = partial(two_ranks, cases=[case for case in TWO if case in run])
    # What earlier runs stored would change what is compiled, which is counted.
    with mock.patch.dict(os.environ, FLEXC_CACHE_DIR=str(folder / "cache")):
        return run_ranks(2, folder, work)


CASES = [
    pytest.param(case, id=str(case), marks=[] if i % 2 else pytest.mark.slow)
    for i, case in enumerate(TWO)
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_two_processes(two: Found, case: Case, method: str) -> None:
    for outcomes, _ in two:
        assert max(outcomes[case, method].errors.values()) <= 1


@pytest.mark.parametrize("case", CASES[:-1])
def test_all_steps_and_methods_share_kernels(two: Found, case: Case) -> None:
    """Besides the bounds of the ring's mask, which are traced without a score_mod.

    Where positions are listed, they are captured, of queries and of keys or not.
    """
    for outcomes, _ in two:
        ring, heads = (outcomes[case, m].compiled for m in METHODS[1:])
        assert not heads
        assert not ring["built"]
        assert not ring["lowered"]


def test_lengths_may_be_given(two: Found) -> None:
    for outcomes, _ in two:
        for kind in ("first", "equal"):
            assert max(outcomes[kind, "lengths"].errors.values()) <= 1


def test_ranks_have_equal_bits_where_asked(two: Found) -> None:
    for outcomes, _ in two:
        assert all(outcomes["equal bits", method] for method in METHODS)


def test_checkpoints_of_all_methods(two: Found) -> None:
    for outcomes, _ in two:
        assert all(outcomes["checkpoint", method] for method in METHODS)


def test_a_rank_of_a_ring_holds_its_part(two: Found) -> None:
    for outcomes, _ in two:
        most, kept = outcomes["memory", "ring"]
        assert most < 1.3  # Two parts and their gradients are there at a time.
        assert 0.4 < kept < 0.6


@pytest.mark.parametrize("case", CASES)
def test_keys_are_gathered_again(two: Found, case: Case) -> None:
    for outcomes, _ in two:
        assert max(outcomes[case, "regathered"].errors.values()) <= 1


def test_gathered_keys_are_not_kept(two: Found) -> None:
    for outcomes, _ in two:
        assert outcomes["memory", "all-gather"][1] < 0.6


def test_outputs_beside_gathered_keys_are_freed() -> None:
    own = torch.ones(3, requires_grad=True)
    with Regathered(list, [own]).within([own.clone()]):
        out = own.exp()  # Its backward needs its output.
    (gradient,) = torch.autograd.grad(out.sum(), own, create_graph=True)
    assert gradient.requires_grad
    output = weakref.ref(out)
    del out, gradient
    gc.collect()
    assert output() is None


@pytest.mark.parametrize("method", ["all-gather", "all-to-all"])
def test_second_order(two: Found, method: str) -> None:
    for outcomes, _ in two:
        assert outcomes["second order", method] < 1e-12


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_that_ranks_read(tmp_path: Path, ranks: int) -> None:
    """Files stand for the memory of GPUs that reach each other's."""
    cases = TWO[::5] if ranks == 2 else [c for c in FOUR if ranks == len(c.lengths)]
    results, shown = tmp_path / "results", tmp_path / "shown"
    results.mkdir()
    shown.mkdir()
    work = partial(read_rows, cases=cases, folder=str(shown))
    for outcomes in run_ranks(ranks, results, work):
        assert all(outcomes.pop("changed"))
        for method in ("all-gather", "all-to-all"):
            assert outcomes.pop(("checkpoint", method))
            assert outcomes.pop(("second order", method), 0) < 1e-12
        wrong = {c: o for c, o in outcomes.items() if max(o.errors.values()) > 1}
        assert not wrong


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_blocks_of_a_copy_between_gpus(batch: int, shares: int) -> None:
    """The engine gets blocks that it can copy, which are all elements, each once."""

    heads, rows = 4, 10
    source = torch.randn(batch, heads, rows, 8).permute(2, 0, 1, 3)
    share = heads // shares
    found = torch.zeros(batch, share, 3 * rows, 8).permute(2, 0, 1, 3)
    blocks = blocks_of(found[5:12], source.chunk(shares, 2)[-1][:7])
    assert blocks is not None
    for block in blocks:
        copy_on_a_cpu(block)
    assert found[5:12].equal(source[:7, :, heads - share :])
    assert found.count_nonzero() == 7 * batch * share * 8
    assert sum(block.height for block in blocks) == batch * share
    assert blocks_of(found[:3, 0, 0, ::2], source[:3, 0, 0, ::2]) is None


def test_pieces_that_lie_in_one_tensor_are_not_copied() -> None:
    def make(count: int) -> Tensor:
        return torch.randn(2, 2, 3 * count, 5, 8).movedim(-2, 0)

    place = transfers.Pieces(2)
    wholes: list[Tensor] = []
    for _ in range(2):  # A backward may run twice.
        rows = [place.take(i, make) for i in (1, 0)][::-1]
        pieces = [r.movedim(0, -2).requires_grad_() for r in rows]
        wholes.append(transfers.join(pieces))
        assert wholes[-1].equal(torch.cat(pieces, 2))
        assert wholes[-1].data_ptr() == pieces[0].data_ptr()
        grads = torch.autograd.grad(wholes[-1].square().sum(), pieces)
        assert all(g.equal(2 * p) for g, p in zip(grads, pieces, strict=True))
    assert wholes[0].data_ptr() != wholes[1].data_ptr()
    apart = [piece.detach().clone() for piece in wholes[0].chunk(2, 2)]
    assert transfers.join(apart).equal(wholes[0])
    wholes[1].mul_(2)  # Not a view.


class Handle:
    """The memory of one rank, in place of torch's handle of symmetric memory."""

    def __init__(self, own: Tensor):
        self.own = own

    def get_buffer(self, rank: int, shape: Any, dtype: torch.dtype) -> Tensor:
        return self.own.view(-1)


@pytest.fixture
def symmetric(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Memory of a CPU in place of GPUs' symmetric memory, at most 1,000 bytes."""
    stream = mock.Mock()

    def empty(size: int, **given: Any) -> Tensor:
        if size > 1000:
            raise RuntimeError("out of memory")
        return torch.empty(size, **given)

    found = mock.Mock(empty=empty, rendezvous=lambda own, group: Handle(own))
    monkeypatch.setattr(shared_memory, "import_module", lambda name: found)
    monkeypatch.setattr(shared_memory, "LEAST_READ", 1)
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: stream)
    for name in ("synchronize", "empty_cache", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: False)
    found.stream = stream
    return found


def test_shared_memory_does_not_keep_its_group(one_rank: None, symmetric: Any) -> None:
    group: Any = dist.group.WORLD
    device = torch.device("cpu")
    memory = SharedMemory(group, device)
    shared_memory._shared[group] = {device: memory}
    assert memory_of(group, device, 100) is memory
    dist.destroy_process_group()
    left = weakref.ref(group), weakref.ref(memory)
    del group, memory
    gc.collect()
    assert [x() for x in left] == [None, None]


def test_shared_memory_that_a_graph_reads_is_kept(
    alone: DeviceMesh, symmetric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SharedMemory(alone.get_group(), torch.device("cpu"))

    def capturing(value: bool) -> None:
        name = "is_current_stream_capturing"
        monkeypatch.setattr(torch.cuda, name, lambda: value)

    assert memory.reserve(100) == ""
    capturing(True)
    with memory.in_turn(is_first=True):
        captured = weakref.ref(memory._parts[0])
    assert "captured" in memory.reserve(200)
    capturing(False)
    assert memory.reserve(200) == ""
    grown = weakref.ref(memory._parts[0])
    assert memory.reserve(300) == ""
    assert captured() is not None
    assert grown() is None


def test_ranks_without_memory_send_messages(alone: DeviceMesh, symmetric: Any) -> None:
    group, device = alone.get_group(), torch.device("cpu")
    memory = SharedMemory(group, device)
    shared_memory._shared[group] = {device: memory}
    assert memory_of(group, device, 500) is memory
    assert memory_of(group, device, 2000) is None
    assert memory.reserve(2000) == "out of memory"
    assert "from 2,000 on, too: out of memory" in shared_memory.way(
        group, device, "all-gather"
    )
    assert memory_of(group, device, 500) is memory


def test_tensors_outlive_the_copies_of_a_turn_that_fails(
    alone: DeviceMesh, symmetric: Any
) -> None:
    memory = SharedMemory(alone.get_group(), torch.device("cpu"))

    def fail() -> None:
        raise ValueError("a copy fails")

    with pytest.raises(ValueError, match="a copy"), memory.in_turn(is_first=True):
        fail()
    # Two streams wait for each other as the turn begins, and again as it fails.
    assert symmetric.stream.wait_stream.call_count == 4


def test_errors_of_an_exchange_without_words(alone: DeviceMesh) -> None:
    def fail() -> None:
        raise RuntimeError

    group = alone.get_group()
    with pytest.raises(DistributedError, match="RuntimeError"), exchange(group):
        fail()


def test_rows_of_memory_that_another_library_allocated() -> None:
    """The start of a storage may lie between the places of 16 bytes."""
    memory = torch.arange(2048, dtype=torch.int16)
    for start in range(9):
        storage: Any = torch.from_numpy(memory.numpy()[start:])
        for offset in range(9):
            rows = storage[offset : offset + 1024].view(4, 8, 32).transpose(0, 1)
            assert dense(rows).equal(rows)
            assert dense(rows).is_contiguous()


def test_the_rule_of_gathered_keys() -> None:
    problem = Problem(1, 8, 8, (64, 64), torch.float32, torch.device("cpu"), "cpp")
    few = replace(problem, kv_heads=2)
    four, two = (Layout.contiguous([64] * n) for n in (4, 2))

    def regathers(mask: Any, problem: Problem, layout: Layout) -> bool:
        parts = Parts(None, 0, layout, layout)  # pyright: ignore
        return find_route(parts, mask, problem).work.regathers(layout, problem)

    assert regathers(causal, problem, four)
    assert not regathers(causal, problem, two)
    assert not regathers(causal, few, four)
    assert not regathers(masks(256)["window"], problem, four)
    assert not regathers(None, problem, Layout.contiguous((0, 0, 0, 64)))


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_whole_tensors_are_shared(two: Found, case: Case) -> None:
    for outcomes, _ in two:
        assert max(outcomes[case, "whole"].errors.values()) <= 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "shape of the query .* rank 0 has .*8.*rank 1 has .*16"),
        (1, "same dtype: rank 0 has torch.float32, rank 1 has torch.float64"),
        (2, r"ModSignatureError: .*context_parallel\.py:.*boolean scalar"),
        (3, "captured values"),
        (4, "code of the mods"),
        (5, "same method: rank 0 has ring, rank 1 has all-gather"),
        (6, r"lengths expects those of all ranks, got \(4, 5\)"),
        (7, "gradients"),
        (8, "same layout: rank 0 has zig-zag, rank 1 has contiguous"),
        (9, r"layout 'given' expects parts of \(5, 3\) queries, got \(4, 4\)"),
        (10, "same elements of captured tensors: rank 0 has"),
        (11, "OptionError: method expects one of .* got 'rings'"),
        (12, "OptionError: layout expects one of .* got 2"),
    ],
)
def test_calls_that_do_not_fit_raise_on_all_ranks(
    two: Found, number: int, words: str
) -> None:
    faults = [found[1][number] for found in two]
    for fault in faults:
        assert re.search(words, fault), fault
    assert faults[0].startswith("DistributedError")


def edges(mesh: DeviceMesh) -> list[bool]:
    """Return True for each call at the edge of what is possible that is right."""
    torch.manual_seed(mesh.get_local_rank())
    x = torch.randn(1, 2, 8, 8)
    attend: Any = partial(context_parallel_attention, mesh=mesh)
    found: list[bool] = []
    for method in METHODS:
        alone = attend(x, x, x, mask_mod=causal, method=method)
        with context_parallel(mesh):
            within = attend(x, x, x, mask_mod=causal, method=method)
        found.append(torch.equal(alone, within))
        empty = x[:, :, :0]
        found.append(attend(empty, empty, empty, method=method).shape == empty.shape)
    short = torch.zeros(3)
    with pytest.raises(CapturedIndexError):
        attend(x, x, x, lambda s, b, h, q, k: s + short[k], method="ring")
    once, again = (attend(x, x, x, method="ring") for _ in range(2))
    found.append(torch.equal(once, again))
    with pytest.raises(OptionError, match="lengths expects the number of tokens"):
        attend(x, x, x, lengths=8)
    return found


def test_edges_of_two_processes(tmp_path: Path) -> None:
    """A group is of use after an error, and a rank's own call is not shared again."""
    assert all(map(all, run_ranks(2, tmp_path, edges)))


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("ring", "killed"),
        pytest.param("all-gather", "killed", marks=pytest.mark.slow),
        ("ring", "backward"),
        ("ring", "refused"),
    ],
)
def test_a_rank_that_leaves_is_reported(tmp_path: Path, method: str, how: str) -> None:
    context = mp.get_context("spawn")
    given = tmp_path, method, how
    ranks = [context.Process(target=leave, args=(r, *given)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    said, seconds = pickle.loads((tmp_path / "0").read_bytes())
    assert said.startswith("DistributedError: rank 0 lost the others"), said
    assert seconds < 60
    if how == "refused":
        own, at_once = pickle.loads((tmp_path / "1").read_bytes())
        assert own.startswith("ShapeError")
        assert at_once < 30


@pytest.mark.slow
def test_four_processes(tmp_path: Path) -> None:
    for outcomes in run_ranks(4, tmp_path, four_ranks):
        for case in FOUR:
            for method in METHODS:
                found = outcomes[case, method]
                assert max(found.errors.values()) <= 1, (case, method)
        for name, case in product(("cp", "rows"), TWO[:3]):
            assert outcomes[name, case] <= 1, (name, case)
        most, kept = outcomes["memory", "ring"]
        assert most < 0.7
        assert 0.2 < kept < 0.3


def test_heads_that_ranks_cannot_share_are_refused(two: Found) -> None:
    for outcomes, _ in two:
        assert "the 3 heads of the query expect a number" in outcomes["three heads"]


def test_there_must_be_a_group() -> None:
    x = torch.zeros(1, 1, 4, 8)
    mesh: Any = None
    with pytest.raises(DistributedError, match="expects a process group"):
        context_parallel_attention(x, x, x, mesh=mesh)


def _parts(*lengths: int, rank: int = 0) -> Parts:
    group: Any = None
    return Parts(group, rank, *[Layout.contiguous(lengths)] * 2)


def _route_of(mask: Any, parts: Parts) -> Route:
    x = torch.zeros(2, 1, parts.queries.lengths[0], 8)
    mods = _Mods(None, mask)
    rest = (False, None, OUTPUTS[True, False], NO_CHOICES)
    own = Preparation(mods.moved(), rest)((x, x, x))
    return find_route(parts, mods.mask, Problem.of(own.with_traced()))


def _live_of(mask: Any, parts: Parts) -> list[str]:
    pairs = _route_of(mask, parts).work.pairs
    return ["".join(str(int(x > 0)) for x in row) for row in pairs]


def test_dead_parts_are_found() -> None:
    four = _parts(100, 100, 100, 100)
    assert _live_of(causal, four) == ["1000", "1100", "1110", "1111"]
    window = masks(400)["window"]
    assert _live_of(window, four) == ["1000", "1100", "0110", "0011"]
    assert _live_of(None, four) == ["1111"] * 4
    assert _live_of(causal, _parts(100, 50, 0, 100))[3] == "1101"


def test_layouts_cut_and_join() -> None:
    whole = torch.arange(23)[None, None, :, None]
    for layout in (
        Layout.contiguous((10, 0, 13)),
        Layout.zig_zag(23, 3),
        Layout.of_owners(23, [0, 2, 1, 2, 2, 0], 3),
        Layout(((), (range(5, 23),), (range(5),))),
        Layout.zig_zag(2, 3),
    ):
        given = whole[:, :, : layout.length]
        parts = [layout.shard(given, rank) for rank in range(3)]
        assert tuple(p.size(2) for p in parts) == layout.lengths
        assert layout.join(parts).equal(given)
    assert Layout.zig_zag(8, 2).ranks == ((range(2), range(6, 8)), (range(2, 6),))
    with pytest.raises(OptionError, match="cover a sequence"):
        Layout(((range(3),), (range(2, 5),)))
    with pytest.raises(ShapeError, match="8 positions"):
        Layout.zig_zag(8, 2).shard(whole, 0)


def test_a_zig_zag_halves_the_steps_of_a_causal_ring() -> None:
    group: Any = None
    layout = Layout.zig_zag(800, 4)
    routes = [_route_of(causal, Parts(group, r, layout, layout)) for r in range(4)]
    work = torch.tensor(routes[0].work.pairs)
    assert work.min() > 0
    torch.testing.assert_close(work.sum(1), work.sum(1).mean().expand(4))
    # The last rank's two parts are neighbours, and one run.
    assert [sum(map(len, route.calls)) for route in routes] == [8, 8, 8, 4]


def test_plans_choose_layouts() -> None:
    def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < 1000)

    ends = torch.tensor([0, 9000, 9500, 10000, 16384])
    document = torch.bucketize(torch.arange(16384), ends, right=True)

    def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return document[q] == document[k]

    gpu = Machine(5e14, 3e11, 3e-5)
    found = {
        m: plan(m, 1, 6, 16384, ranks=4, machine=gpu)
        for m in (causal, window, documents)
    }
    assert found[causal].layout.name == "zig-zag"
    assert found[window].layout.name == "contiguous"
    costs = {(e.layout.name, e.method): e.imbalance for e in found[documents].estimates}
    assert 1.15 < costs["contiguous", "all-gather"] < 1.25
    assert min(costs.values()) < 1.02
    assert ("contiguous", "all-to-all") not in costs
    lines = str(found[causal]).splitlines()
    assert "16,384 tokens on 4 ranks" in lines[0]
    assert lines[4].split()[:2] == ["zig-zag", found[causal].method]
    with pytest.raises(OptionError, match="ranks of 1 or more, got 0"):
        plan(causal, 1, 1, 128, ranks=0)
    assert plan(None, 1, 1, 1, ranks=1).layout.lengths == (1,)


def test_plans_of_many_ranks_tell_neighbours_apart() -> None:
    def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < 1000)

    gpu = Machine(5e14, 4e10, 3e-5)
    found = plan(window, 1, 8, 300 * 2048, ranks=300, machine=gpu)
    assert (found.layout.name, found.method) == ("contiguous", "ring")
    assert found.estimates[0].imbalance < 1.01


@pytest.mark.parametrize(("length", "window"), [(1 << 17, 4096), (10 << 20, 4096)])
def test_plans_count_narrow_windows(length: int, window: int) -> None:
    def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window)

    rates = Machine(1e12, 1e12, 0.0)
    found = plan(near, 1, 8, length, ranks=8, machine=rates, head_dim=64, device="cpu")
    (best, *_) = found.estimates
    seconds = best.compute / best.imbalance / (1 + BACKWARD)
    pairs = seconds * 8 * rates.flops / (4 * 64)
    assert pairs == pytest.approx(8 * window * length, rel=0.15)


def test_plans_of_masks_without_pairs() -> None:
    found = plan(lambda b, h, q, k: k < 0, 1, 1, 64, ranks=1, device="cpu")
    assert found.estimates[0].seconds == 0


@pytest.mark.parametrize(
    "given",
    [
        {"kv_heads": 0},
        {"kv_heads": 3},
        {"head_dim": 0},
        {"head_dim": -8},
        {"dtype": torch.int32},
        {"dtype": torch.float8_e4m3fn},
        {"dtype": "bf16"},
        {"machine": "fast"},
    ],
    ids=str,
)
def test_plans_refuse_options(given: dict[str, Any]) -> None:
    (name,) = given
    error = DtypeError if name == "dtype" else OptionError
    with pytest.raises(error, match=f"(?i){name}"):
        plan(causal, 1, 8, 64, ranks=2, device="cpu", **given)


@pytest.mark.parametrize("rates", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (math.nan, 1, 1)])
def test_machines_refuse_rates(rates: tuple[float, float, float]) -> None:
    with pytest.raises(OptionError, match="rates above 0"):
        Machine(*rates)


def test_counted_pairs_are_those_of_visited_blocks() -> None:
    layout = Layout.zig_zag(1024, 4)
    route = _route_of(causal, Parts(None, 0, layout, layout))  # pyright: ignore
    live = torch.ones(1024, 1024).tril()[None, None]
    for rank, row in enumerate(route.work.pairs):
        for source, pairs in enumerate(row):
            part = layout.shard(layout.shard(live, rank), source, 3)
            blocks = part.unfold(2, 8, 8).unfold(3, 8, 8).amax((4, 5))
            assert pairs == 2 * 64 * blocks.sum()


def test_parts_of_documents_are_found() -> None:
    document = torch.arange(4096) // 1024

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return document[q] == document[k]

    parts = _parts(1024, 1024, 1024, 1024)
    assert _live_of(same, parts) == ["1000", "0100", "0010", "0001"]
    document[1024:2048] = 0
    assert _live_of(same, parts) == ["1100", "1100", "0010", "0001"]


def test_keys_travel_as_far_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "rank", 2)
    group: Any = None
    route = _route_of(masks(300)["window"], _parts(100, 100, 100, rank=2))
    own = [(range(r, r + 100),) for r in (0, 100, 200)]
    halos = [(range(75, 100),), (range(175, 200),), ()]  # In blocks of 25.
    assert route.carried == [[x, halo, ()] for x, halo in zip(own, halos, strict=True)]
    ring = Ring(group, route)
    assert [ring.here(step) for step in range(3)] == [own[2], halos[1], ()]
    assert ring.onward(0) == halos[2]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_ranks_get_the_keys_that_they_need(data: st.DataObject) -> None:
    ranks, size = data.draw(st.integers(1, 5)), 8
    parts = data.draw(st.integers(1, 6 * ranks))
    owner = st.integers(0, ranks - 1)
    owners = data.draw(st.lists(owner, min_size=parts, max_size=parts))
    length = size * parts - data.draw(st.integers(0, 7))
    layout = Layout.of_owners(length, owners, ranks)
    grid = -(-length // size)
    cells = data.draw(st.lists(st.booleans(), min_size=grid**2, max_size=grid**2))
    live = torch.tensor(cells, dtype=torch.float64).view(grid, grid)
    visits = Visits(live, (size, size))
    needs = visits.needs(layout)
    ways, work = carried_keys(layout, needs), visits.work(layout, layout)
    pairs = live.bool().repeat_interleave(size, 0).repeat_interleave(size, 1)
    pairs = pairs[:length, :length]

    def positions(runs: Runs) -> set[int]:
        return {i for run in runs for i in run}

    for source, way in enumerate(ways):
        own = positions(layout.ranks[source])
        assert way[0] == layout.ranks[source]
        later: set[int] = set()
        for step in reversed(range(1, ranks)):
            rank = (source + step) % ranks
            rows = [pairs[list(run)].any(0) for run in layout.ranks[rank]]
            needed = {i for row in rows for i in row.nonzero()[:, 0].tolist()} & own
            assert needed <= positions(needs[rank])
            later |= needed
            assert later <= positions(way[step]) <= positions(way[step - 1])
            if layout.is_listed:
                assert positions(way[step]) == later
            else:
                assert len(way[step]) < 2 * MOST_RUNS
            assert work.carried[source][step] == len(later)


def test_keys_and_gradients_travel_while_ranks_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The middle one of three ranks, whose exchanges are recorded."""
    events: list[str] = []

    def exchange(self: Ring, sent: Any, received: Any) -> Any:
        for tensor in (t for tensors, _ in received for t in tensors):
            tensor.zero_()
        if not sent and not received:
            return lambda: None
        events.append(f"start {len(sent)} {len(received)}")
        return lambda: events.append("wait")

    backward = derivatives.backward

    def computed(*args: Any) -> Any:
        events.append("backward")
        return backward(*args)

    monkeypatch.setattr(Ring, "rank", 1)
    monkeypatch.setattr(Ring, "exchange", exchange)
    monkeypatch.setattr(derivatives, "backward", computed)
    parts = _parts(16, 16, 16, rank=1)
    rest = (False, None, OUTPUTS[True, False], NO_CHOICES)

    def prepare(queries: Span, keys: Span, *operands: Tensor) -> Attention:
        events.append("forward")
        return Preparation((None, None, None), rest)(operands).with_traced()  # pyright: ignore

    ring = Ring(parts.group, _route_of(None, parts))
    x = torch.randn(1, 2, 16, 8, requires_grad=True)
    out: Any = RingAttention.apply(ring, prepare, x, x, x)
    step = ["start 1 1", "forward", "wait"]
    assert events == [*step, *step, "forward"]
    events.clear()
    out[0].sum().backward()
    # Keys are sent before a step, and gradients of the step before while it runs.
    first = ["start 1 1", "backward", "start 1 1", "wait"]
    second = ["start 1 1", "backward", "wait", "start 1 1", "wait"]
    assert events == [*first, *second, "backward", "wait", "start 1 1", "wait"]


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def alone(one_rank: None) -> DeviceMesh:
    return init_device_mesh("cpu", (1,), mesh_dim_names=("cp",))


def test_explanations_name_how_ranks_share(alone: DeviceMesh) -> None:
    x = torch.randn(1, 2, 64, 8)
    with context_parallel(alone, layout="zig-zag"):
        (found,) = flexc.explain(lambda: flexc.flex_attention(x, x, x, mask_mod=causal))
    assert found.ranks.startswith("1 of 'cp', layout zig-zag, method ")
    assert "imbalance 1.00" in str(found)


def test_explanations_name_how_rows_come(
    alone: DeviceMesh, symmetric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "LEAST_READ", 2**20)
    x = torch.randn(1, 2, 64, 8)
    memory = SharedMemory(alone.get_group(), x.device)
    shared_memory._shared[alone.get_group()] = {x.device: memory}
    for method, words in ("all-gather", "read from"), ("ring", "in messages"):
        with context_parallel(alone, method=method):  # pyright: ignore
            (found,) = flexc.explain(lambda: flexc.flex_attention(x, x, x))
        assert f"rows {words}" in found.ranks


def test_second_derivatives_name_the_method(alone: DeviceMesh) -> None:
    x = torch.randn(1, 2, 16, 8, requires_grad=True)
    for method in ("ring", "all-gather"):
        out: Any = context_parallel_attention(x, x, x, mesh=alone, method=method)
        if method == "ring":
            with pytest.raises(GradientError, match='method="all-gather" has second'):
                torch.autograd.grad(out.sum(), x, create_graph=True)
        else:
            (found,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            torch.autograd.grad(found.square().sum(), x)


@pytest.mark.parametrize("method", ["all-gather", "all-to-all"])
def test_gradients_that_nobody_needs_do_not_move(
    alone: DeviceMesh, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    moved: list[int] = []
    start = transfers.start

    def counted(given: Any, tensors: Sequence[Tensor]) -> None:
        moved.append(len(tensors))
        start(given, tensors)

    monkeypatch.setattr(transfers, "start", counted)
    x = torch.randn(1, 2, 16, 8)
    key = x.clone().requires_grad_()
    out: Any = context_parallel_attention(x, key, x, mesh=alone, method=method)  # pyright: ignore
    forward = [2] if method == "all-gather" else [3, 2]
    assert moved == forward
    moved.clear()
    out.sum().backward()
    assert moved == ([1] if method == "all-gather" else [1, 1])
    assert key.grad is not None


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_narrow_keys_are_refused(alone: DeviceMesh, dtype: torch.dtype) -> None:
    x = torch.zeros(1, 2, 16, 8)
    y = x.to(dtype)
    with pytest.raises(DtypeError, match="the query's dtype"):
        context_parallel_attention(x, y, y, mesh=alone)


def test_another_rank_and_step_compile_nothing() -> None:
    found = masks(400)["window"]
    x = torch.randn(1, 2, 100, 8, requires_grad=True)
    before: Any = None
    for query, key in ((0, 0), (300, 200), (100, 0), (0, 100), (300, 300)):
        mask = _Mods(None, found).moved(query, key)[2]
        out: Any = flexc.flex_attention(x, x, x, mask_mod=mask)
        out.sum().backward()
        assert before in (None, counters)
        before = counters.copy()
