"""Calls of ranks in processes of their own, compared with one process."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

import flexc
from bench.context_parallel import memory_of, train
from flexc.distributed import (
    Layout,
    context_parallel,
    context_parallel_attention,
    shared_memory,
    transfers,
)
from flexc.errors import ShapeError
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process.recent import Recent

HEADS, DIM = 4, 8
METHODS = ("all-gather", "ring", "all-to-all")

LARGEST_SCORE = 64
"""A bound of the scores here, biases included: ALiBi over a few hundred tokens."""


def exact() -> torch.dtype:
    """Return the dtype of comparisons. GPU kernels compute no float64."""
    on_cpu = torch.get_default_device().type == "cpu"
    return torch.float64 if on_cpu else torch.float32


@dataclass(frozen=True)
class Case:
    """A call, by the names of its mods."""

    mask: str | None
    score: str | None
    lengths: tuple[int, ...]
    kv_heads: int = HEADS
    layout: str | tuple[int, ...] = "contiguous"
    """The name of a layout, or the owners of its parts."""

    def layout_of(self, ranks: int) -> Layout:
        length = sum(self.lengths)
        match self.layout:
            case tuple() as owners:
                return Layout.of_owners(length, owners, ranks)
            case "zig-zag":
                return Layout.zig_zag(length, ranks)
            case "scattered":
                owners = [(3 * i + i // ranks) % ranks for i in range(8 * ranks)]
                return Layout.of_owners(length, owners, ranks)
            case _:
                return Layout.contiguous(self.lengths)


@dataclass
class Outcome:
    """The differences of one rank's results, in units of the allowed difference."""

    errors: dict[str, float]
    compiled: Counter[str]
    """What the call compiled, by the names of the driver's counters."""


def masks(length: int) -> dict[str | None, Any]:
    document = (torch.arange(length) * 7 // 2) // 37
    prefix = torch.tensor([length // 3, length // 5])
    return {
        None: None,
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q - k <= 17) & (q >= k),
        "documents": lambda b, h, q, k: (document[q] == document[k]) & (q >= k),
        "prefix": lambda b, h, q, k: (k < prefix[b]) | (q >= k),
    }


def scores(length: int) -> tuple[dict[str | None, Any], Tensor]:
    """Return score_mods by name, and the bias that one of them learns."""
    bias = torch.randn(HEADS, length, dtype=exact(), requires_grad=True)
    slopes = torch.rand(HEADS, dtype=exact()) / 8
    found = {
        None: None,
        "alibi": lambda s, b, h, q, k: s - slopes[h] * (q - k).abs(),
        "soft cap": lambda s, b, h, q, k: 3 * torch.tanh(s / 3),
        "bias": lambda s, b, h, q, k: s + bias[h, (q - k).abs()],
    }
    return found, bias


def outcome(case: Case, method: Any, mesh: DeviceMesh, **options: Any) -> Outcome:
    """Run a call on this rank, and compare it with the dense call of one process.

    A sum of n terms in another order differs by n ulps of its terms' sizes, and an
    exponential by its score's size in ulps.
    """
    torch.manual_seed(0)
    length, rank = sum(case.lengths), mesh.get_local_rank()
    shapes = [(2, h, length, DIM) for h in (HEADS, case.kv_heads, case.kv_heads)]
    inputs = query, key, value = tuple(
        torch.randn(s, dtype=exact(), requires_grad=True) for s in shapes
    )
    mods, bias = scores(length)
    score, mask = mods[case.score], masks(length)[case.mask]
    wrt = [*inputs, bias] if case.score == "bias" else [*inputs]
    call: dict[str, Any] = {"mask_mod": mask, "enable_gqa": True, "return_lse": True}
    whole: Any = flexc.flex_attention(query, key, value, score, backend="eager", **call)
    cotangents = [torch.randn_like(t) for t in whole]
    gradients = torch.autograd.grad(whole, wrt, cotangents)

    layout = case.layout_of(mesh.size())

    def part(tensor: Tensor) -> Tensor:
        return layout.shard(tensor, rank)

    before = counters.copy()
    found = context_parallel_attention(
        part(query),
        part(key),
        part(value),
        score,
        mesh=mesh,
        method=method,
        layout=layout,
        **call,
        **options,
    )
    grads = torch.autograd.grad(found, wrt, [part(c) for c in cotangents])
    unit = length * LARGEST_SCORE * torch.finfo(exact()).eps
    names = ("out", "lse", "query", "key", "value", "bias")
    pairs = [
        *((a, part(b)) for a, b in zip(found, whole, strict=True)),
        *((part(a), part(b)) for a, b in zip(grads[:3], gradients, strict=False)),
        *zip(grads[3:], gradients[3:], strict=True),
    ]
    errors = {
        name: 0.0
        if a.numel() == 0
        else float((a - b).detach().abs().max() / b.detach().abs().max()) / unit
        for name, (a, b) in zip(names, pairs, strict=False)
    }
    return Outcome(errors, counters - before)


def whole_outcome(case: Case, mesh: DeviceMesh) -> Outcome:
    """Share a call of whole tensors among ranks, and compare it with one alone."""
    torch.manual_seed(0)
    length = sum(case.lengths)
    mods, bias = scores(length)
    score, mask = mods[case.score], masks(length)[case.mask]
    shapes = [(2, h, length, DIM) for h in (HEADS, case.kv_heads, case.kv_heads)]
    query, key, value = inputs = [
        torch.randn(s, dtype=exact(), requires_grad=True) for s in shapes
    ]
    wrt = [*inputs, bias] if case.score == "bias" else inputs

    def run() -> list[Tensor]:
        found: Any = flexc.flex_attention(
            query, key, value, score, mask_mod=mask, enable_gqa=True, return_lse=True
        )
        torch.manual_seed(1)
        cotangents = [torch.randn_like(t) for t in found]
        return [*found, *torch.autograd.grad(found, wrt, cotangents)]

    alone = run()
    with context_parallel(mesh):
        shared = run()
    unit = length * LARGEST_SCORE * torch.finfo(exact()).eps
    names = ("out", "lse", "query", "key", "value", "bias")
    errors = {
        name: float((a - b).detach().abs().max() / b.detach().abs().max()) / unit
        for name, a, b in zip(names, shared, alone, strict=False)
    }
    return Outcome(errors, Counter())


Work = Callable[[DeviceMesh], Any]


def run_ranks(
    size: int,
    folder: Path,
    work: Work,
    device: str = "cpu",
    keeps_group: bool = False,
) -> list[Any]:
    """Return what `work` returns in each of some processes, by rank.

    New tensors of a process are on its device. Unless `keeps_group`, as torch's
    DTensors do, a group on CPUs is freed with its last call.
    """
    args = size, folder, work, device, keeps_group or device != "cpu"
    mp.spawn(_run, args, nprocs=size)  # pyright: ignore
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(size)]


def cases_that_run(request: pytest.FixtureRequest) -> list[Any]:
    """Return the values of the parameter `case` of a module's tests that run."""
    found: dict[Any, None] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            found |= {params["case"]: None} if "case" in params else {}
    return list(found)


def _run(
    rank: int, size: int, folder: Path, work: Work, device: str, keeps_group: bool
) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    backend = "gloo"
    if device == "cuda":
        backend = "nccl"
        torch.cuda.set_device(rank)
        torch.set_default_device(device)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    group = ref(dist.group.WORLD)  # pyright: ignore
    found = work(init_device_mesh(device, (size,), mesh_dim_names=("cp",)))
    (folder / str(rank)).write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    assert keeps_group or group() is None, "a call keeps the group and its threads"


PAIR = (61, 61)

TWO = [
    Case("causal", "bias", PAIR),
    Case("causal", "bias", (70, 33), kv_heads=2),
    Case("window", "alibi", PAIR),
    Case("documents", "soft cap", PAIR),
    Case("prefix", None, PAIR, kv_heads=2),
    Case("causal", "bias", PAIR, layout="zig-zag"),
    Case(None, None, PAIR),
    Case("documents", "bias", PAIR, 2, "scattered"),
]
"""Cases of two ranks. The short run has each second one."""

WHOLE = [
    Case("causal", "bias", (1300,)),
    Case("documents", "alibi", (1501,), kv_heads=2),
]

FOUR = [
    Case("causal", "bias", (40, 40, 40, 40)),
    Case("window", "alibi", (31, 40, 0, 22)),
    Case("documents", "bias", (31, 40, 57, 22)),
    Case(None, "soft cap", (1, 2, 3, 4)),
    Case("window", "bias", (150,), layout="zig-zag"),
    Case("causal", "alibi", (150,), layout="scattered"),
]


def two_ranks(
    mesh: DeviceMesh, cases: Sequence[Case]
) -> tuple[dict[Any, Any], list[str]]:
    outcomes: dict[Any, Any] = {
        (c, m): outcome(c, m, mesh) for c in cases for m in METHODS
    }
    for kind in ("first", "equal"):
        given = TWO[1].lengths
        outcomes[kind, "lengths"] = outcome(TWO[1], "ring", mesh, lengths=given)
    outcomes["three heads"] = share_three_heads(mesh)
    for case in WHOLE:
        outcomes[case, "whole"] = whole_outcome(case, mesh)
    for method in METHODS:
        outcomes["equal bits", method] = equal_bits(method, mesh)
        outcomes["checkpoint", method] = equals_checkpointed(method, mesh)
    outcomes["memory", "ring"] = share_of_memory(mesh, "ring")
    with mock.patch("flexc.distributed.plans.Work.regathers", return_value=True):
        for case in cases:
            outcomes[case, "regathered"] = outcome(case, "all-gather", mesh)
        outcomes["memory", "all-gather"] = share_of_memory(mesh, "all-gather")
        outcomes["second order", "all-gather"] = second_order(mesh, "all-gather")
    outcomes["second order", "all-to-all"] = second_order(mesh, "all-to-all")
    return outcomes, faults(mesh)


def two_gpus(mesh: DeviceMesh) -> dict[Any, Any]:
    """Compare calls whose rows come in messages, and are read, however few they are."""
    outcomes: dict[Any, Any] = {
        (c, m): outcome(c, m, mesh) for c in TWO for m in METHODS
    }
    with few_rows_are_read():
        for case, method in product(TWO, ("all-gather", "all-to-all")):
            outcomes[case, method, "read"] = outcome(case, method, mesh)
    for case in WHOLE:
        outcomes[case, "whole"] = whole_outcome(case, mesh)
    return outcomes


@contextmanager
def few_rows_are_read() -> Iterator[None]:
    """Let ranks read rows, and heads move in pieces, whatever the size."""
    with (
        mock.patch.object(shared_memory, "LEAST_READ", 1),
        mock.patch.object(transfers, "LEAST_IN_PIECES", 1),
    ):
        yield


def copy_on_a_cpu(block: shared_memory.Block) -> None:
    """Copy what the driver of a GPU would copy."""
    assert block.width <= min(block.pitch_to, block.pitch_of)
    for row in range(block.height):
        to, of = block.to + row * block.pitch_to, block.of + row * block.pitch_of
        ctypes.memmove(to, of, block.width)


class FileMemory(shared_memory.SharedMemory):
    """Memory that processes of a CPU share, in place of GPUs' memory.

    Copies are made when they are waited for, as late as an engine may make them.
    """

    def __init__(self, group: dist.ProcessGroup, folder: str):
        self._group = ref(group)
        self._parts = [
            torch.from_file(f"{folder}/{r}", True, 2**20, dtype=torch.uint8)
            for r in range(dist.get_world_size(group))
        ]
        self.copies, self.fences = Recent(64), 0
        self._late: list[list[shared_memory.Block]] = []
        self._copied = {}

    def reserve(self, size: int) -> str:
        return "" if size <= self._parts[0].numel() else "files are small"

    def _copy(self, block: shared_memory.Block) -> None:
        self._late[-1].append(block)

    @contextmanager
    def in_turn(self, is_first: bool) -> Iterator[None]:
        self.join()
        self.fence()
        yield

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._late.append([])
        yield

    def join(self) -> None:
        for blocks in self._late:
            _copy_all(blocks)
        self._late.clear()
        self._copied.clear()

    def completion(self, found: Sequence[Tensor]) -> Callable[[], None]:
        blocks = self._late[-1]
        self._copied[id(blocks)] = found
        return partial(_copy_all, blocks)

    def fence(self) -> None:
        self.fences += 1
        dist.barrier(self.group)


def _copy_all(blocks: list[shared_memory.Block]) -> None:
    while blocks:
        copy_on_a_cpu(blocks.pop())


def read_rows(mesh: DeviceMesh, cases: Sequence[Case], folder: str) -> dict[Any, Any]:
    """Compare calls whose ranks read each other's rows in shared memory."""
    group = mesh.get_group()
    memory = FileMemory(group, folder)
    found: dict[Any, Any] = {}
    connected = {group: {torch.device("cpu"): memory}}
    shared = mock.patch.object(shared_memory, "_shared", connected)
    with few_rows_are_read(), shared:
        for method in ("all-gather", "all-to-all"):
            found |= {(case, method): outcome(case, method, mesh) for case in cases}
            found["checkpoint", method] = equals_checkpointed(method, mesh)
            if mesh.size() == 2:
                found["second order", method] = second_order(mesh, method)
        for method in ("all-gather", "all-to-all"):
            equals_checkpointed(method, mesh)
            known = len(memory.copies)
            equals_checkpointed(method, mesh)
            assert len(memory.copies) == known  # Of equal calls, blocks are found.
        found["changed"] = [changes(mesh, heads) for heads in (1, 2)]
    assert memory.fences
    return found


def changes(mesh: DeviceMesh, heads: int) -> bool:
    """Return True if a caller may change results, of so many heads of each rank."""
    x = torch.randn(1, heads * mesh.size(), 32, DIM, requires_grad=True)
    given: Any = {"mesh": mesh, "method": "all-to-all", "return_lse": True}
    results: Any = context_parallel_attention(x, x, x, **given)
    expected = torch.autograd.grad(
        results, x, [2 * torch.ones_like(r) for r in results]
    )
    results = context_parallel_attention(x, x, x, **given)
    for result in results:
        result.mul_(2)
    found = torch.autograd.grad(results, x, [torch.ones_like(r) for r in results])
    return found[0].equal(expected[0])


def second_order(mesh: DeviceMesh, method: str) -> float:
    """Return the error of second derivatives."""
    torch.manual_seed(0)
    whole = [
        torch.randn(1, 2, 32, 8, dtype=exact(), requires_grad=True) for _ in range(3)
    ]
    layout = Layout.zig_zag(32, mesh.size())

    def second(tensors: Sequence[Tensor], attend: Any) -> Sequence[Tensor]:
        out = attend(*tensors, mask_mod=causal)
        first = torch.autograd.grad(out.sin().sum(), tensors, create_graph=True)
        total = torch.stack([g.square().sum() for g in first]).sum()
        return torch.autograd.grad(total, tensors)

    expected = second(whole, flexc.flex_attention)
    rank = mesh.get_local_rank()
    parts = [layout.shard(t, rank).detach().requires_grad_() for t in whole]
    given = {"mesh": mesh, "method": method, "layout": layout}
    found = second(parts, partial(context_parallel_attention, **given))
    errors = [
        (f - layout.shard(e, rank)).abs().max() / e.abs().max()
        for f, e in zip(found, expected, strict=True)
    ]
    return float(max(errors))


def four_ranks(mesh: DeviceMesh) -> dict[Any, Any]:
    outcomes: dict[Any, Any] = {
        (c, m): outcome(c, m, mesh) for c in FOUR for m in METHODS
    }
    outcomes["memory", "ring"] = share_of_memory(mesh, "ring")
    wide = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "rows"))
    for name, case in product(("cp", "rows"), TWO[:3]):
        outcomes[name, case] = max(
            max(outcome(case, method, wide[name], mesh_dim=name).errors.values())
            for method in METHODS
        )
    return outcomes


def equal_bits(method: Any, mesh: DeviceMesh) -> bool:
    """Return True if a rank's results and gradients have the same bits twice."""
    torch.manual_seed(0)
    bias = torch.randn(HEADS, 256, requires_grad=True)
    x = torch.randn(2, HEADS, 128, DIM, requires_grad=True)

    def run() -> list[Tensor]:
        out: Any = context_parallel_attention(
            x, x, x, lambda s, b, h, q, k: s + bias[h, (q - k).abs()],
            mask_mod=causal, mesh=mesh, method=method,
        )  # fmt: skip
        return [out, *torch.autograd.grad(out.sin().sum(), [x, bias])]

    torch.use_deterministic_algorithms(True)
    try:
        return all(a.equal(b) for a, b in zip(run(), run(), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def equals_checkpointed(method: Any, mesh: DeviceMesh) -> bool:
    """Return True if a checkpoint leaves the gradient of a rank's part as it is."""
    x = torch.randn(1, HEADS, 32, DIM, requires_grad=True)

    def attend(x: Tensor) -> Any:
        given: Any = {"mask_mod": causal, "mesh": mesh, "method": method}
        return context_parallel_attention(x, x, x, **given)

    outs = attend(x), checkpoint(attend, x, use_reentrant=False)
    own, other = (torch.autograd.grad(out.sin().sum(), x)[0] for out in outs)
    return own.equal(other)


def share_of_memory(mesh: DeviceMesh, method: Any) -> tuple[float, float]:
    """Return the most bytes that a rank allocates in training, and those kept for the
    backward, by those of one process.
    """
    window = masks(1)["window"]
    whole = [torch.randn(1, HEADS, 4096, 32, requires_grad=True) for _ in range(3)]
    layout = Layout.contiguous([4096 // mesh.size()] * mesh.size())
    parts = [layout.shard(t, mesh.get_local_rank()).detach() for t in whole]
    own = [part.clone().requires_grad_() for part in parts]
    ring: Any = partial(
        context_parallel_attention, mask_mod=window, mesh=mesh, method=method
    )
    alone: Any = partial(flexc.flex_attention, mask_mod=window)
    found: list[tuple[float, float]] = []
    for tensors, attend in ((own, ring), (whole, alone)):
        train(tensors, attend)  # What is compiled is not counted.
        found.append(memory_of(tensors, attend, torch.device("cpu")))  # pyright: ignore
    (most, kept), (most_alone, kept_alone) = found
    return most / most_alone, kept / kept_alone


def faults(mesh: DeviceMesh) -> list[str]:
    """Return the errors of calls that do not fit."""
    is_first = mesh.get_local_rank() == 0
    x = torch.zeros(1, 2, 4, 8)
    odd = x if is_first else torch.zeros(1, 2, 4, 16)

    def fails(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k if is_first else torch.rand(())

    window = 3 if is_first else 4
    ends = torch.full((1,), window)
    calls: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = [
        ((odd, odd, odd), {}),
        ((x.to(torch.float32 if is_first else torch.float64),) * 3, {}),
        ((x, x, x), {"mask_mod": fails}),
        ((x, x, x), {"mask_mod": lambda b, h, q, k: q - k < window}),
        ((x, x, x), {"mask_mod": causal if is_first else anticausal}),
        ((x, x, x), {"method": "ring" if is_first else "all-gather"}),
        ((x, x, x), {"lengths": (4, 5)}),
        ((torch.zeros_like(x, requires_grad=is_first), x, x), {}),
        ((x, x, x), {"layout": "zig-zag" if is_first else "contiguous"}),
        ((x, x, x), {"layout": Layout(((range(5),), (range(5, 8),)))}),
        ((x, x, x), {"mask_mod": lambda b, h, q, k: k < ends[b]}),
        ((x, x, x), {"method": "ring" if is_first else "rings"}),
        ((x, x, x), {"layout": "zig-zag" if is_first else 2}),
    ]
    found: list[str] = []
    for tensors, options in calls:
        try:
            context_parallel_attention(*tensors, mesh=mesh, **options)  # pyright: ignore
            found.append("none")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def share_three_heads(mesh: DeviceMesh) -> str:
    """Return the error of whole tensors whose heads two ranks cannot share."""
    x = torch.zeros(1, 3, 64, 8)
    with (
        context_parallel(mesh, method="all-to-all"),
        pytest.raises(ShapeError) as error,
    ):
        flexc.flex_attention(x, x, x)
    return str(error.value)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def anticausal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q <= k


def leave(rank: int, folder: Path, method: Any, how: str) -> None:
    """Let the second of two ranks end, or fail alone, and write what the first gets."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    wait = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=store, timeout=wait, world_size=2, rank=rank
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    call: dict[str, Any] = {"mesh": mesh, "method": method, "lengths": (8, 8)}
    out: Any = context_parallel_attention(x, x, x, **call)
    dist.barrier()
    if rank and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    odd = torch.randn(1, 2, 8, 9) if rank and how == "refused" else x
    start = time.monotonic()
    try:
        if how == "backward":
            if rank:
                os.kill(os.getpid(), signal.SIGKILL)
            out.sum().backward()
        else:
            context_parallel_attention(odd, x, x, **call)
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    (folder / f"{rank}").write_bytes(pickle.dumps((said, seconds)))
    os._exit(0)  # Without waiting for the others.
