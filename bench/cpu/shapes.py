"""Shapes of models on a CPU, beside SDPA: `python -m bench.cpu.shapes`.

Contiguous tensors and views of a fused projection, which lie as (B, S, 3 H, D). Both
sides take turns, SDPA with `enable_gqa`; a line has medians and their ratio. On one
thread it is the process's CPU time, which other processes disturb little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.cpu.cells import DTYPES
from bench.timing import turns
from tests.support.corpus_masks import causal_mask

TURN_SECONDS = 0.01
"""Calls of a turn take about so long, the first of which is not timed."""


class Shape(NamedTuple):
    batch: int
    heads: int
    length: int
    dim: int
    kv_heads: int | None = None

    def __str__(self) -> str:
        shared = "" if self.kv_heads is None else f" on {self.kv_heads}"
        return f"({self.batch}, {self.heads}{shared}, {self.length}, {self.dim})"


SHAPES = (
    Shape(1, 12, 128, 64),
    Shape(8, 12, 128, 64),
    Shape(4, 12, 512, 64),
    Shape(1, 32, 2048, 128, 8),
    Shape(1, 8, 1024, 80),
    Shape(1, 8, 1024, 96),
    Shape(1, 4, 4096, 32),
    Shape(2, 8, 777, 48),
    Shape(1, 1, 8192, 64),
    Shape(1, 8, 2048, 256),
)
LAYOUTS = ("contiguous", "fused")


def tensors(
    shape: Shape, layout: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value."""
    torch.manual_seed(0)
    heads = [shape.heads, *2 * [shape.kv_heads or shape.heads]]
    fused = torch.randn(shape.batch, shape.length, sum(heads), shape.dim).to(dtype)
    query, key, value = (x.transpose(1, 2) for x in fused.split(heads, 2))
    if layout == "fused":
        return query, key, value
    return query.contiguous(), key.contiguous(), value.contiguous()


def calls(
    shape: Shape, layout: str, dtype: torch.dtype, causal: bool
) -> dict[str, Callable[[], object]]:
    qkv, shared = tensors(shape, layout, dtype), shape.kv_heads is not None
    mask = causal_mask if causal else None
    return {
        "flexc": lambda: flexc.flex_attention(*qkv, mask_mod=mask, enable_gqa=shared),
        "sdpa": lambda: scaled_dot_product_attention(
            *qkv, is_causal=causal, enable_gqa=shared
        ),
    }


def turn_seconds(
    run: Callable[[], object], count: int, clock: Callable[[], float]
) -> float:
    """Return the seconds of a call, of `count` calls after one that is not timed."""
    run()
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


def medians(
    runs: dict[str, Callable[[], object]], rounds: int, budget: float
) -> dict[str, float]:
    alone = torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    fitting: dict[str, int] = {}
    for name, run in runs.items():
        run()
        once = turn_seconds(run, 1, clock)
        fitting[name] = max(1, int(TURN_SECONDS / max(once, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(runs, rounds, budget):
        times[name].append(turn_seconds(runs[name], fitting[name], clock))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--shapes", nargs="+", type=int, help="which, from 0")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds a line")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    chosen = [SHAPES[i] for i in given.shapes] if given.shapes else SHAPES
    print("| dtype | shape | layout | flexc, us | SDPA, us | SDPA / flexc |")
    print("| --- | --- | --- | --- | --- | --- |")
    for dtype in given.dtypes:
        for shape in chosen:
            for layout in given.layouts:
                runs = calls(shape, layout, DTYPES[dtype], given.causal)
                with torch.no_grad():
                    taken = medians(runs, given.rounds, given.budget)
                own, other = taken["flexc"] * 1e6, taken["sdpa"] * 1e6
                cells = dtype, shape, layout, f"{own:.0f}", f"{other:.0f}"
                print(
                    "|", *[f"{c} |" for c in cells], f"{other / own:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
