"""Context parallel attention beside torch's, in one run: time, speed-up and memory.

    python -m bench.context_parallel
    python -m bench.context_parallel --device cuda --ranks 4 --length 262144

Processes share one call by gloo on the CPU, or by NCCL on GPUs. torch's systems are its
ring of SDPA, which is causal, and its flex_attention with gathered keys. The CPU's
flex_attention has no backward. On the CPU, torch's ring gets the operators of the CPU.
`speed-up` is the time of flexc in one process, while the others wait, by the system's.
`MiB` are the most that a rank allocates in training, and those kept for the backward.
Both include its query, key and value.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel as torch_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as theirs
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

import flexc
from flexc.distributed import context_parallel_attention, plan

Attend = Callable[[Tensor, Tensor, Tensor], Any]


def masks(length: int, device: torch.device) -> dict[str, Any]:
    """Return causal masks by name: documents are of a 64th to an 8th of the length."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(length // 64, length // 8, (64,), generator=generator)
    ends = sizes.cumsum(0)
    document = torch.bucketize(torch.arange(length), ends, right=True).to(device)
    window = length // 16

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window)

    def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document[q] == document[k])

    return {"causal": causal, "window": near, "documents": documents}


class CpuRing(torch.autograd.Function):
    """torch's ring around the CPU's operators, which torch does not send there."""

    @staticmethod
    def forward(ctx: Any, group: Any, *tensors: Tensor) -> Tensor:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = theirs._templated_ring_attention(
            group, 2, op, *tensors, is_causal=True
        )
        ctx.group = group
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore
        def op(
            grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, **rest: Any
        ):
            back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            rest["dropout_p"] = 0.0
            return back(grad_out, query, key, value, **rest)

        query, key, value, out, lse = ctx.saved_tensors
        ring: Any = theirs._templated_ring_attention_backward
        tensors = query, key, value, out, lse
        found = ring(ctx.group, 2, op, grad, "grad_out", *tensors, True)
        return None, *found[:3]


def torch_ring(mesh: DeviceMesh, rotate: str, length: int) -> tuple[Attend, Any]:
    """Return torch's ring of SDPA, and the context that it runs in.

    torch reads the length of the sequence off a tensor that it shards.
    """
    theirs.set_rotate_method(rotate)
    if mesh.device_type == "cpu":
        return partial(CpuRing.apply, mesh.get_group()), nullcontext()
    whole = torch.empty(length, device=mesh.device_type)
    context = torch_parallel(mesh, buffers=[whole], buffer_seq_dims=[0])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # torch replaces the function within the context.
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend, context


def torch_gathered(mesh: DeviceMesh, mask: Any, sizes: Sequence[int]) -> Attend:
    """Return torch's flex_attention of own queries and gathered keys, compiled."""
    batch, heads, length, _ = sizes
    blocks = theirs._create_cp_block_mask(mask, batch, heads, length, length, mesh)
    flex: Any = torch.compile(torch_flex.flex_attention, dynamic=False)
    name = mesh.get_group().group_name

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        key, value = torch.ops.cplib.flex_cp_allgather(key, value, 2, name)
        return flex(query, key, value, block_mask=blocks)

    return attend


def train(tensors: Sequence[Tensor], attend: Attend) -> None:
    query, key, value = tensors
    torch.autograd.grad(attend(query, key, value).sum(), tensors)


def forward(tensors: Sequence[Tensor], attend: Attend) -> None:
    query, key, value = (t.detach() for t in tensors)
    attend(query, key, value)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(
    run: Callable[[], Any],
    device: torch.device,
    times: int,
    alone: bool = False,
    calls: int = 1,
) -> float:
    """Return the shortest time of a run, of `calls` in a row that ranks start together.

    The slowest rank counts, unless one runs alone.
    """
    found: list[float] = []
    for _ in range(times + 1):
        wait(device)
        if not alone:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait(device)
        taken = torch.tensor((time.perf_counter() - start) / calls, device=device)
        if not alone:
            dist.all_reduce(taken, dist.ReduceOp.MAX)
        found.append(taken.item())
    return min(found[1:])


def bytes_of(run: Callable[[], Any], device: torch.device) -> tuple[int, int]:
    """Return the most bytes of tensors that a run allocates at a time, and those that
    its result keeps.
    """
    if device.type == "cuda":
        wait(device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = run()
        wait(device)
        most, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del result
        return most - before, kept - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        result = run()
    del result
    events: Any = profiler.profiler.kineto_results.events()  # pyright: ignore
    moves = [e for e in events if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(moves, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most, held


System = tuple[Attend, Any, Any]
"""Attention of a rank's parts, the context it needs, and its layout."""


def systems(
    mesh: DeviceMesh, name: str, mask: Any, whole: Sequence[Tensor]
) -> dict[str, Callable[[], System]]:
    """Return what can compute a mask on a mesh, by name.

    A system is made when it is called: torch's flex_attention compiles its mask.
    """
    sizes, ranks = whole[0].shape, mesh.size()
    batch, heads, length, dim = sizes
    found = plan(
        mask, batch, heads, length, ranks=ranks, head_dim=dim, dtype=whole[0].dtype,
        device=whole[0].device,
    )  # fmt: skip

    def ours(layout: flexc.distributed.Layout, method: Any) -> System:
        attend: Any = partial(
            context_parallel_attention, mask_mod=mask, mesh=mesh,
            method=method, layout=layout, lengths=layout.lengths,
        )  # fmt: skip
        return attend, nullcontext(), layout

    def ring(method: str) -> System:
        theirs._cp_options.enable_load_balance = True
        attend, context = torch_ring(mesh, method, length)
        return attend, context, flexc.distributed.Layout.zig_zag(length, ranks)

    def gathered() -> System:
        theirs._cp_options.enable_load_balance = False
        parts = flexc.distributed.Layout.contiguous([length // ranks] * ranks)
        return torch_gathered(mesh, mask, sizes), nullcontext(), parts

    by_method = {e.method: e for e in reversed(found.estimates)}
    makers: dict[str, Callable[[], System]] = {}
    for method, best in reversed(by_method.items()):
        makers[f"flexc {method}, {best.layout.name}"] = partial(
            ours, best.layout, method
        )
    if name == "causal":
        for method in ("alltoall", "allgather"):
            makers[f"torch SDPA ring, {method}"] = partial(ring, method)
    return makers | {"torch flex, gathered": gathered}


def compare(rank: int, store: str, args: argparse.Namespace) -> None:
    """Print the table on one of the processes."""
    torch.set_num_threads(1)
    device, backend = torch.device("cpu"), "gloo"
    if args.device == "cuda":
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=store, rank=rank, world_size=args.ranks
    )
    mesh = init_device_mesh(args.device, (args.ranks,), mesh_dim_names=("cp",))
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    shape = (1, args.heads, args.length, args.head_dim)
    torch.manual_seed(0)
    whole = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    timed = partial(seconds_of, device=device, times=args.times, calls=args.calls)
    for name, mask in masks(args.length, device).items():
        if name not in args.masks:
            continue
        alone = [float("nan")] * 2
        runs = forward, train
        attend: Any = partial(flexc.flex_attention, mask_mod=mask)
        given = [t.detach().requires_grad_() for t in whole]
        if rank == 0:
            alone = [timed(partial(run, given, attend), alone=True) for run in runs]
            memory = memory_of(given, attend, device, alone=True)
            print_row(name, "flexc, one process", alone, alone, memory)
        del given
        for system, make in systems(mesh, name, mask, whole).items():
            if not any(part in system for part in args.systems):
                continue
            attend, context, layout = make()
            given = [layout.shard(t, rank).clone().requires_grad_() for t in whole]
            has_backward = args.device == "cuda" or "flex," not in system
            memory = [float("nan")] * 2
            with context:
                seconds = [
                    timed(partial(run, given, attend))
                    for run in (runs if has_backward else runs[:1])
                ]
                if has_backward:
                    memory = memory_of(given, attend, device)
            if rank == 0:
                print_row(name, system, seconds, alone, memory)
    dist.destroy_process_group()


def memory_of(
    given: Sequence[Tensor], attend: Attend, device: torch.device, alone: bool = False
) -> list[float]:
    """Return the most MiB that a rank holds in training, and those kept between the
    forward and the backward.

    The step makes the operands, as projections do: a method that sends them to other
    ranks need not keep them.
    """

    def made(*given: Tensor) -> Any:
        return attend(*(t.clone() for t in given))  # pyright: ignore

    most, _ = bytes_of(partial(train, given, made), device)
    # What others still send is released a little later: the smallest counts.
    kept = min(bytes_of(partial(made, *given), device)[1] for _ in range(3))
    found = torch.tensor([most, kept], device=device, dtype=torch.float64)
    if not alone:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return (found / 2**20).tolist()


def print_row(
    mask: str,
    system: str,
    seconds: Sequence[float],
    alone: Sequence[float],
    memory: Sequence[float],
) -> None:
    cells = [f"{mask:10}{system:44}"]
    for own, one in zip([*seconds, float("nan")][:2], alone, strict=True):
        cells.append(f"{own * 1e3:10.1f}{one / own:9.2f}")
    print(*cells, *(f"{size:9.1f}" for size in memory), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1, help="in a row, each time")
    parser.add_argument("--masks", nargs="+", default=["causal", "window", "documents"])
    parser.add_argument("--systems", nargs="+", default=[""], help="parts of names")
    args = parser.parse_args()
    print(
        f"{'mask':10}{'system':44}{'fwd, ms':>11}{'speed-up':>9}{'both, ms':>11}"
        f"{'speed-up':>9}{'MiB':>10}{'kept':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        mp.spawn(compare, (store, args), nprocs=args.ranks)  # pyright: ignore


if __name__ == "__main__":
    main()
