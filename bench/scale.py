"""What a sequence costs on 8 to 1,024 GPUs, by the cost model of `flexc.distributed`.

    python -m bench.scale --png scale.png
    python -m bench.scale --check
    python -m bench.scale --measure --device cuda --length 65536

The first prints and draws the cheapest layout and method of a call's forward and
backward, from rates that were measured (kernels) or stated (links). The second measures
calls on processes of this machine's CPU beside what the model says of them, given the
rates of one process and of their links. The third runs all calls of rings of 2 and 4
ranks on one device, one after another, and prints their time by that of one call.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import flexc
from bench.context_parallel import Attend, forward, seconds_of, train
from bench.context_parallel import masks as shorter_masks
from flexc.distributed import (
    Layout,
    Machine,
    Plan,
    _Mods,
    context_parallel_attention,
    plan,
)
from flexc.distributed.layouts import take
from flexc.distributed.plans import BACKWARD, Estimate, Problem, find_route
from flexc.distributed.ranks import Parts
from flexc.runtime.inputs.arguments import Outputs
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.interface import Preparation

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
NODE = 8
"""The number of GPUs that NVLink connects."""
POINTS = {
    131072: (8, 16, 32, 64),
    1 << 20: (8, 32, 64, 128, 256),
    10 << 20: (64, 256, 1024),
}
"""Numbers of GPUs by lengths."""


def masks(length: int) -> dict[str, Any]:
    """Return masks by name. Documents have 1,000 to 16,000 tokens."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1000, 16000, (length // 1000 + 1,), generator=generator)
    document = torch.bucketize(torch.arange(length), sizes.cumsum(0), right=True)

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < 4096)

    def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document[q] == document[k])

    return {"causal": causal, "window": window, "documents": documents}


def machine_of(gpus: int, args: argparse.Namespace) -> Machine:
    """Return the rates of a GPU. An exchange is as slow as its slowest link."""
    rate = (1 + BACKWARD) / (1 / args.forward + BACKWARD / args.backward)
    link = args.nvlink if gpus <= NODE else args.network
    return Machine(rate * 1e12, link * 1e9, args.latency * 1e-6)


@dataclass(frozen=True)
class Point:
    """The cheapest way of a mask on some GPUs, and the cheapest contiguous one."""

    mask: str
    length: int
    gpus: int
    best: Estimate
    contiguous: Estimate

    @classmethod
    def of(cls, name: str, length: int, gpus: int, found: Plan) -> Point:
        plain = (e for e in found.estimates if e.layout.name == "contiguous")
        return cls(name, length, gpus, found.estimates[0], next(plain))

    def efficiency(self, estimate: Estimate) -> float:
        """Return the time of an equal share of the products, in the time predicted."""
        return estimate.compute / estimate.imbalance / estimate.seconds

    @property
    def memory(self) -> float:
        """The GiB of query, key, value and output, and of visiting tokens."""
        own = max(self.best.layout.lengths) * 2 * 2 * (HEADS + KV_HEADS) * HEAD_DIM
        return (own + self.best.memory) / 2**30

    def __str__(self) -> str:
        e = self.best
        return (
            f"{self.mask:11}{self.length:>12,}{self.gpus:>6}  {e.layout.name:26}"
            f"{e.method:11}{e.seconds * 1e3:10.4g}{self.efficiency(e):8.2f}"
            f"{e.imbalance:10.2f}{self.memory:8.2f}{self.efficiency(self.contiguous):12.2f}"
        )


def predict(args: argparse.Namespace) -> Iterable[Point]:
    for length, counts in POINTS.items():
        for name, mask in masks(length).items():
            for gpus in counts:
                machine = machine_of(gpus, args)
                given = {"kv_heads": KV_HEADS, "device": "cuda", "machine": machine}
                found = plan(mask, 1, HEADS, length, ranks=gpus, **given)
                yield Point.of(name, length, gpus, found)


def draw(points: list[Point], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(p.mask for p in points))
    figure, axes = plt.subplots(1, len(names), figsize=(12, 4), sharey=True)
    for panel, name in zip(axes, names, strict=True):
        for color, length in zip(("C0", "C1", "C2"), POINTS, strict=True):
            own = [p for p in points if (p.mask, p.length) == (name, length)]
            gpus = [p.gpus for p in own]
            label = f"{length // 1024:,}k tokens"
            best = [p.efficiency(p.best) for p in own]
            panel.plot(gpus, best, f"{color}o-", label=label)
            plain = [p.efficiency(p.contiguous) for p in own]
            panel.plot(gpus, plain, f"{color}x:", label=f"{label}, contiguous")
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks := sorted({p.gpus for p in points}), map(str, ticks))
        panel.set(title=name, xlabel="GPUs", ylim=(0, 1.05))
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("share of a linear speed-up (predicted)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(path, dpi=120)


Work = Callable[[Sequence[Tensor], Attend], None]


def virtual_ring(
    mask: Any, layout: Layout, whole: Sequence[Tensor]
) -> Callable[[Work], None]:
    """Return a function that does some work for all calls of all ranks of a ring."""
    mods, group = _Mods(None, mask), cast(Any, None)
    call = Preparation((None, None, mask), (False, None, Outputs(), NO_CHOICES))
    problem = Problem.of(call(whole).with_traced())  # pyright: ignore
    calls: list[tuple[list[Tensor], Attend]] = []
    for rank in range(layout.size):
        parts = [[layout.shard(t, r) for t in whole] for r in range(layout.size)]
        route = find_route(Parts(group, rank, layout, layout), mask, problem)
        for step, visits in enumerate(route.calls):
            query, source = parts[rank][0], (rank - step) % layout.size
            runs = layout.ranks[source], route.carried[source][step]
            key_value = [take(t, *runs) for t in parts[source][1:]]
            for queries, keys in visits:
                given = [queries.of(query), *map(keys.of, key_value)]
                moved = mods.moved(queries.origin, keys.origin)[2]
                attend: Any = partial(flexc.flex_attention, mask_mod=moved)
                calls.append(([t.detach().requires_grad_() for t in given], attend))

    def run(work: Work) -> None:
        for given, attend in calls:
            work(given, attend)

    return run


def measure(args: argparse.Namespace) -> None:
    """Print the time of all calls of a ring by that of one call, on one device."""
    length, device = args.length, torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = (1, args.heads, length, args.head_dim)
    whole = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    given = [t.clone().requires_grad_() for t in whole]
    print(f"{'mask':11}{'ranks':>6}  {'layout':12}{'forward':>10}{'both':>10}")
    for name, mask in shorter_masks(length, device).items():
        one: Any = partial(flexc.flex_attention, mask_mod=mask)
        for ranks, named in product((2, 4), ("contiguous", "zig-zag")):
            layout = Layout.zig_zag(length, ranks)
            if named == "contiguous":
                layout = Layout.contiguous([length // ranks] * ranks)
            ring = virtual_ring(mask, layout, whole)
            ratios: list[float] = []
            for work in (forward, train):
                runs = partial(ring, work), partial(work, given, one)
                there, here = (seconds_of(r, device, 5, alone=True) for r in runs)
                ratios.append(there / here)
            cells = "".join(f"{ratio:10.3f}" for ratio in ratios)
            print(f"{name:11}{ranks:6}  {named:12}{cells}", flush=True)


CPU = torch.device("cpu")
LENGTH, CHECKED = 2048, dict(B=1, H=4, head_dim=64, dtype=torch.float32)


def tensors(length: int) -> list[Tensor]:
    shape = (CHECKED["B"], CHECKED["H"], length, CHECKED["head_dim"])
    return [torch.randn(shape, requires_grad=True) for _ in range(3)]  # pyright: ignore


def measured_machine(rank: int, ranks: int) -> Machine:
    """Return the rates of a process while the others compute and send, too."""
    given = tensors(LENGTH // 2)
    seconds = seconds_of(lambda: train(given, flexc.flex_attention), CPU, 3)
    products = 4 * given[0].numel() * given[0].size(2)

    def swap(size: int) -> Callable[[], None]:
        sent, received = torch.zeros(size), torch.zeros(size)
        peers = (rank + 1) % ranks, (rank - 1) % ranks

        def run() -> None:
            ops = [
                dist.P2POp(dist.isend, sent, peers[0]),
                dist.P2POp(dist.irecv, received, peers[1]),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        return run

    if ranks == 1:
        return Machine((1 + BACKWARD) * products / seconds, 1e9, 0.0)
    latency, large = (seconds_of(swap(n), CPU, 3) for n in (1, 1 << 20))
    found = torch.tensor([seconds, latency, large], dtype=torch.float64)
    dist.all_reduce(found)
    seconds, latency, large = (found / ranks).tolist()
    rate = (1 + BACKWARD) * products / seconds
    return Machine(rate, 4 * 2**20 / max(large - latency, 1e-9), latency)


def check(rank: int, ranks: int, store: str) -> None:
    """Print predicted and measured times of calls on some processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    machine = measured_machine(rank, ranks)
    sizes: Any = {**CHECKED, "length": LENGTH, "ranks": ranks, "device": "cpu"}
    seen: set[tuple[str, str, str]] = set()
    for name, mask in masks(LENGTH).items():
        if name == "documents":
            name, mask = "short window", lambda b, h, q, k: (q >= k) & (q - k < 256)
        for e in plan(mask, **sizes, machine=machine).estimates:
            kind = name, e.layout.name.split(",")[0], e.method
            if kind in seen or kind[1] == "balanced" or (ranks == 1 and len(seen)):
                continue
            seen.add(kind)
            given = [
                e.layout.shard(t, rank).detach().requires_grad_()
                for t in tensors(LENGTH)
            ]

            options: Any = {"method": e.method, "layout": e.layout, "mask_mod": mask}
            options |= {"mesh": mesh, "lengths": e.layout.lengths}
            attend: Any = partial(context_parallel_attention, **options)
            seconds = seconds_of(partial(train, given, attend), CPU, 3)
            if rank == 0:
                ratio = seconds / e.seconds
                print(
                    f"{ranks:5}  {name:14}{e.layout.name:26}{e.method:11}"
                    f"{e.seconds * 1e3:10.1f}{seconds * 1e3:10.1f}{ratio:8.2f}",
                    flush=True,
                )
    if rank == 0:
        print(f"{machine}\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forward", type=float, default=614, help="TFLOP/s")
    parser.add_argument("--backward", type=float, default=554, help="TFLOP/s")
    parser.add_argument("--nvlink", type=float, default=300, help="GB/s each way")
    parser.add_argument("--network", type=float, default=40, help="GB/s each way")
    parser.add_argument("--latency", type=float, default=30, help="us a message")
    parser.add_argument("--png", help="the file to draw")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    args = parser.parse_args()
    if args.measure:
        return measure(args)
    if args.check:
        print(
            f"{'ranks':7}{'mask':14}{'layout':26}{'method':11}{'model, ms':>10}"
            f"{'measured':>10}{'ratio':>8}"
        )
        for ranks in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                store = f"file://{folder}/store"
                mp.spawn(check, (ranks, store), nprocs=ranks)  # pyright: ignore
        return
    print(
        f"{'mask':11}{'tokens':>12}{'GPUs':>6}  {'layout':26}{'method':11}{'ms':>10}"
        f"{'linear':>8}{'imbalance':>10}{'GiB':>8}{'contiguous':>12}"
    )
    points: list[Point] = []
    for point in predict(args):
        points.append(point)
        print(point, flush=True)
    if args.png:
        draw(points, args.png)


if __name__ == "__main__":
    main()
