"""Making block masks: flexc beside torch's compiled `create_block_mask`.

`python -m bench.masks [--device cuda] [--tokens 8192 65536]`. Prints the first call of
a new mask, the median of the calls after it (contestants take turns) and the memory
of one; then what planning a mask of documents takes at a length that torch cannot
hold. Torch's result is compared with flexc's before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import create_block_mask as torch_block_mask

import flexc
from bench.timing import interleaved_medians
from flexc.frontend.closures import read_mods
from flexc.runtime.inputs.options import resolve_backend
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.planner.plans import PlanningProblem
from flexc.runtime.planner.tables import plan_problem
from flexc.runtime.process.cache import cache_dir
from tests.support.block_tables import differences

DOCUMENT = 3001
"""Tokens of each document."""

LONGEST = 1 << 20

Make = Callable[[], BlockMask]


def causal(tokens: int, device: str) -> Any:
    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return mask_mod


def documents(tokens: int, device: str) -> Any:
    ids = torch.arange(tokens, dtype=torch.int32, device=device) // DOCUMENT

    def mask_mod(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    return mask_mod


MASKS = {"causal": causal, "documents": documents}


def synchronized(make: Make, device: str) -> Make:
    """With the device's work done, so that a wall clock sees it."""

    def run() -> BlockMask:
        result = make()
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    return run


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_megabytes(run: Callable[[], Any], device: str) -> float:
    """Of the device's memory, or by how much the process grew."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3


def compare(name: str, tokens: int, device: str, rounds: int) -> None:
    mask = MASKS[name](tokens, device)
    compiled = torch.compile(torch_block_mask)
    arguments = (mask, None, None, tokens, tokens, device)
    makers: dict[str, Make] = {
        "flexc": synchronized(lambda: flexc.create_block_mask(*arguments), device),
        "torch": synchronized(lambda: compiled(*arguments), device),
    }
    first = {who: seconds(make) for who, make in makers.items()}
    # Flexc first: what torch took before would hide its growth.
    memory = {who: peak_megabytes(make, device) for who, make in makers.items()}
    found = differences(makers["flexc"](), makers["torch"]())
    assert not found, f"{name} at {tokens}: {', '.join(found)} differ from torch's"
    times = interleaved_medians(makers, rounds, budget=30.0)
    for who in makers:
        print(
            f"{name:>10} {tokens:>8} {who:>6}  first {first[who]:7.2f} s  then "
            f"{times[who] * 1e3:9.3f} ms  peak {memory[who]:8.1f} MB"
        )
    print(f"{'':>26}  {times['torch'] / times['flexc']:.0f} times faster")


def plan(tokens: int, device: str) -> None:
    """Planning as `flex_attention(mask_mod=...)` does it."""
    signature = read_mods(None, documents(tokens, device))
    problem, place = (
        PlanningProblem(1, 1, tokens, tokens, 128, 128),
        torch.device(device),
    )
    backend = resolve_backend("auto", place)

    def run() -> None:
        found, mods = trace_mods(signature, torch.float32, place)
        plan_problem(found, mods, problem, place, backend, both=False)
        if device == "cuda":
            torch.cuda.synchronize()

    first = seconds(run)
    memory = peak_megabytes(run, device)
    print(
        f"plan documents {tokens}: first {first:.2f} s, then {seconds(run):.3f} s, "
        f"peak {memory:.0f} MB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.masks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--longest", type=int, default=LONGEST)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as fresh:
        # The first call of a mask that no process has seen yet.
        use_cache(fresh)
        plan(options.longest, options.device)
        for name in options.masks:
            for tokens in options.tokens:
                compare(name, tokens, options.device, options.rounds)


def use_cache(directory: str) -> None:
    """Keep compiled kernels in a directory of this run alone."""
    os.environ["FLEXC_CACHE_DIR"] = directory
    assert str(cache_dir()).startswith(directory)


if __name__ == "__main__":
    main()
