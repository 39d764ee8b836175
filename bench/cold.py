"""What the first call of a mod takes: traced, lowered and compiled, or from the disk.

`python -m bench.cold [--mods causal alibi] [--kind training] [--device cuda]`. Two
processes call the same mods one after another. The first finds nothing on the disk; the
second finds what the first left. Neither finds anything of an earlier mod in memory.
What first calls import is imported by that of no mods, if it is at all. `--kind
lowering` prints how long it takes to lower each to a kernel of an NVIDIA GPU of
capability 9.0, without one.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SHAPE = 1, 8, 1024, 64
TOKENS = SHAPE[2]
F64 = torch.float64

Mods = tuple[Callable[..., Any] | None, Callable[..., Any] | None]


def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def causal() -> Mods:
    return None, causal_mask


def window() -> Mods:
    width = 256
    return None, lambda b, h, q, kv: (q >= kv) & (q - kv <= width)


def prefix() -> Mods:
    lengths = torch.tensor([200])
    return None, lambda b, h, q, kv: (kv < lengths[b]) | (q >= kv)


def documents() -> Mods:
    ids = torch.arange(TOKENS) // 300
    return None, lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)


def alibi() -> Mods:
    slopes = torch.exp2(-torch.arange(1.0, 9.0))
    return lambda s, b, h, q, kv: s + slopes[h] * (kv - q), causal_mask


def soft_cap() -> Mods:
    cap = 20.0
    return lambda s, b, h, q, kv: cap * torch.tanh(s / cap), causal_mask


def t5_buckets() -> Mods:
    table = torch.randn(32, 8, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = kv_idx - q_idx
        n = distance.abs()
        steps = torch.log(n.clamp(min=1) / 8.0) / math.log(16.0) * 8
        far = torch.clamp(8 + steps.to(torch.int32), max=15)
        bucket = torch.where(distance > 0, 16, 0) + torch.where(n < 8, n, far)
        return score + table[bucket, h]

    return score_mod, None


def neighbourhood() -> Mods:
    side, reach = 32, 6

    def mask_mod(b, h, q_idx, kv_idx):
        down = (q_idx // side - kv_idx // side).abs()
        across = (q_idx % side - kv_idx % side).abs()
        return (down <= reach) & (across <= reach)

    return None, mask_mod


def graphormer() -> Mods:
    """A bias by hops, and the mean of three edges' along the shortest path."""
    hops = torch.randint(0, 20, (TOKENS, TOKENS))
    edges = torch.randint(0, 50, (TOKENS, TOKENS, 3))
    near = torch.randn(20, 8, requires_grad=True)
    along = torch.randn(3, 50, 8, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        path = 0.0
        for step in range(3):
            path = path + along[step, edges[q_idx, kv_idx, step], h]
        far = hops[q_idx, kv_idx]
        return score + near[far, h] + path / far.clamp(1, 3)

    return score_mod, None


MODS = {
    f.__name__: f
    for f in (
        causal,
        window,
        prefix,
        documents,
        alibi,
        soft_cap,
        t5_buckets,
        neighbourhood,
        graphormer,
    )
}


def processor_seconds() -> float:
    """Of all processors, for this process and the compilers that it ran."""
    return sum(os.times()[:4])


def seconds(run: Callable[[], Any]) -> Tensor:
    """Seconds by the clock, and of processors."""

    def now() -> Tensor:
        return torch.tensor([time.perf_counter(), processor_seconds()], dtype=F64)

    start = now()
    run()
    return now() - start


def forget() -> None:
    """Drop what calls left in memory."""
    from flexc.runtime.process.recent import Recent
    from flexc.runtime.replay import repeats

    repeats.KNOWN.clear()
    for found in gc.get_objects():
        if type(found) is Recent:
            found.clear()
    gc.collect()


def first_call(mods: Mods, training: bool, device: str) -> Tensor:
    """Seconds that the first call of mods takes more than the third.

    The second records what it does. On a GPU in bfloat16.
    """
    import flexc

    score_mod, mask_mod = mods
    is_gpu = device == "cuda"
    made = torch.randn(3, *SHAPE).to(device, torch.bfloat16 if is_gpu else None)
    query, key, value = (t.clone().requires_grad_(training) for t in made)

    def run() -> None:
        with torch.set_grad_enabled(training):
            given = query, key, value, score_mod
            out: Any = flexc.flex_attention(*given, mask_mod=mask_mod)
        if training:
            out.sum().backward()
        if is_gpu:
            torch.cuda.synchronize()

    first = seconds(run)
    run()
    return first - seconds(run)


def lower(mods: Mods) -> None:
    """Down to a kernel of an H100."""
    from flexc.frontend.capture import capture_mods
    from flexc.frontend.closures import read_mods
    from flexc.frontend.import_graph import AttentionCall, build_attention_module
    from flexc.runtime.inputs.options import NO_OPTIONS
    from flexc.runtime.kernels.build import Build
    from flexc.runtime.kernels.driver import lower
    from flexc.runtime.kernels.schedules import candidates
    from flexc.runtime.tapes.gpus import HOPPER

    call = AttentionCall(
        dtype=torch.bfloat16,
        head_dim=64,
        value_dim=64,
        scale_positive=True,
        alignment=16,
        has_pairs=True,
    )
    build = Build(call, "triton", "cuda", NO_OPTIONS, capability=HOPPER)
    traced = capture_mods(read_mods(*mods))
    module = build_attention_module(traced.score, traced.mask, call).module
    lower(module, build, candidates(build).schedules[0])


def measure(names: list[str], kind: str, device: str, folder: str) -> dict[str, Any]:
    """In this process: imports, then the first call of each of some mods."""
    import flexc

    found = {"imports": seconds(lambda: flexc.flex_attention)}
    for name in ("nothing", *names):
        for cache in ("FLEXC", "TRITON"):
            path = os.path.join(folder, cache, kind, name)
            os.environ[f"{cache}_CACHE_DIR"] = path
        with torch.device(device):
            mods = (None, None) if name == "nothing" else MODS[name]()
        if kind == "lowering":
            found[name] = seconds(lambda mods=mods: lower(mods))
        else:
            found[name] = first_call(mods, kind == "training", device)
            forget()
    return {name: taken.tolist() for name, taken in found.items()}


def in_another_process(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.cold", "--kind", options.kind]
    command += ["--device", options.device]
    command += ["--within", folder, "--mods", *options.mods]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout)


def show(kind: str, columns: dict[str, dict[str, Any]]) -> None:
    """Print a table: by the clock, and what processors took."""
    rows = list(next(iter(columns.values())))
    print(f"{kind + ', s':>15}  " + "  ".join(f"{name:>18}" for name in columns))
    print(f"{'':>15}  " + "  ".join(f"{'clock':>9}{'cpu':>9}" for _ in columns))

    def line(name: str, values: list[list[float]]) -> None:
        numbers = "  ".join(f"{wall:9.3f}{cpu:9.3f}" for wall, cpu in values)
        print(f"{name:>15}  {numbers}")

    for row in rows:
        line(row, [found[row] for found in columns.values()])
    for what, of in (("median", statistics.median), ("most", max)):
        mods = [[found[n] for n in rows if n in MODS] for found in columns.values()]
        line(what, [[of(v) for v in zip(*found, strict=True)] for found in mods])


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.cold", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--mods", nargs="+", default=list(MODS), choices=MODS)
    kinds = ["forward", "training", "lowering"]
    parser.add_argument("--kind", default="forward", choices=kinds)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--within", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.within is not None:
        given = options.mods, options.kind, options.device, options.within
        print(json.dumps(measure(*given)))
        return
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "from disk")[: 1 if options.kind == "lowering" else 2]:
            columns[name] = in_another_process(options, folder)
    show(options.kind, columns)


if __name__ == "__main__":
    main()
