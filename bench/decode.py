"""One query over caches of keys: flexc beside `scaled_dot_product_attention`.

    python -m bench.decode [--peers]

32 query and 8 key heads of head dim 128 in bf16. Keys are contiguous or in pages of 16
and 128, with ALiBi, a soft cap, lengths that a mask captures, and a window. Then 64
sequences of 100 to 32,512 keys, beside torch flex with a mask of lengths. us a call, in
a CUDA graph of calls and back to back, and TB/s of the keys and values that are seen.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.timing import interleaved_loop_medians, turns

HEADS, KV_HEADS, DIM = 32, 8, 128
CALLS = 12
"""The calls of a CUDA graph."""

Run = Callable[[], Any]


class Keys(NamedTuple):
    """Keys and values of sequences, (B, Hkv, S, E), and the lengths that are used."""

    key: Tensor
    value: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, lengths: list[int]) -> Keys:
        shape = (len(lengths), KV_HEADS, max(lengths), DIM)
        options: Any = {"device": "cuda", "dtype": torch.bfloat16}
        key, value = (torch.randn(shape, **options) for _ in range(2))
        counts = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        return cls(key, value, counts)

    def seen(self, most: int) -> int:
        """Return the bytes of the last keys and values, `most` of each sequence."""
        return int(self.lengths.clamp(max=most).sum()) * KV_HEADS * DIM * 4

    def in_pages(self, size: int) -> dict[str, Any]:
        """Return the arguments of a call with these keys in pages in random places."""
        batch, _, length, _ = self.key.shape
        each = -(-length // size)
        table = torch.randperm(batch * each, device="cuda").int().view(batch, each)
        pools: list[Tensor] = []
        for tensor in (self.key, self.value):
            padded = torch.nn.functional.pad(tensor, (0, 0, 0, each * size - length))
            pages = padded.unflatten(2, (each, size)).transpose(1, 2)
            pool = torch.empty_like(pages.flatten(0, 1))
            pool[table.long()] = pages
            pools.append(pool)
        return {"key": pools[0], "value": pools[1], "page_table": table}


def attend(query: Tensor, mods: Mods, keys: dict[str, Any]) -> Run:
    given: dict[str, Any] = {"enable_gqa": True, **keys}
    return lambda: flexc.flex_attention(
        query, score_mod=mods[0], mask_mod=mods[1], **given
    )


Mods = tuple[Callable[..., Any] | None, Callable[..., Any] | None]


def mods_of(keys: Keys) -> dict[str, Mods]:
    slopes = torch.exp2(-torch.arange(1, HEADS + 1, device="cuda") / 4)
    lengths, window = keys.lengths, 1024
    return {
        "plain": (None, None),
        "ALiBi": (lambda s, b, h, q, k: s + slopes[h] * (k - lengths[b] + 1), None),
        "soft cap": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), None),
        "kv_len": (None, lambda b, h, q, k: k < lengths[b]),
        "kv_len, window": (
            None,
            lambda b, h, q, k: (k < lengths[b]) & (k >= lengths[b] - window),
        ),
    }


def systems(query: Tensor, keys: Keys) -> dict[str, Run]:
    layouts = {
        "": {"key": keys.key, "value": keys.value},
        ", pages of 16": keys.in_pages(16),
        ", pages of 128": keys.in_pages(128),
    }
    found: dict[str, Run] = {
        f"{name}{layout}": attend(query, mods, given)
        for name, mods in mods_of(keys).items()
        for layout, given in layouts.items()
    }
    if len(set(keys.lengths.tolist())) == 1:
        sdpa = partial(scaled_dot_product_attention, enable_gqa=True)
        found["SDPA"] = lambda: sdpa(query, keys.key, keys.value)
    else:
        found = {name: run for name, run in found.items() if "kv_len" in name}
    return found


def by_torch(query: Tensor, keys: Keys) -> Run:
    """Torch flex with the mask of lengths."""
    mask: Any = mods_of(keys)["kv_len"][1]
    sizes = (len(query), None, 1, keys.key.size(2))
    block_mask = create_block_mask(mask, *sizes, device="cuda")
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    given: Any = {"block_mask": block_mask, "enable_gqa": True}
    return lambda: compiled(query, keys.key, keys.value, **given)


def graph_of(run: Run) -> Run:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return graph.replay


def graph_medians(runs: dict[str, Run], budget: float) -> dict[str, float]:
    """Return the median seconds of a call in a graph of calls."""
    graphs = {name: graph_of(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(graphs, 15, budget):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graphs[name]()
        begin.record()
        graphs[name]()
        end.record()
        torch.cuda.synchronize()
        times[name].append(begin.elapsed_time(end) / 1e3 / CALLS)
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure(name: str, lengths: list[int], peers: bool, budget: float) -> None:
    keys = Keys.of(lengths)
    query = torch.randn(
        len(lengths), HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16
    )
    with torch.no_grad():
        runs = systems(query, keys)
        if peers:
            runs["torch flex"] = by_torch(query, keys)
        for run in runs.values():
            run()
        in_graph = graph_medians(runs, budget)
        in_loop = interleaved_loop_medians(runs, "cuda", budget=budget)
    for system, taken in in_graph.items():
        rate = keys.seen(1024 if "window" in system else 1 << 30) / taken / 1e12
        print(
            f"{name} | {system} | {taken * 1e6:.1f} ({rate:.2f}) | "
            f"{in_loop[system] * 1e6:.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--budget", type=float, default=1.0)
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    ragged = torch.rand(64, generator=generator) * 32412 + 100
    ragged[:2] = torch.tensor([100, 32512])
    calls = {
        "B=1, 8,192": ([8192], False),
        "B=16, 8,192": ([8192] * 16, False),
        "B=1, 131,072": ([131072], False),
        "B=64, 100 to 32,512": (ragged.int().tolist(), given.peers),
    }
    for name, (lengths, peers) in calls.items():
        measure(name, lengths, peers, given.budget)


if __name__ == "__main__":
    main()
