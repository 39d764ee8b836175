"""The demonstration: a dozen attention variants, a real model, and training.

`make demo`, or `python -m bench.demo`. Without a GPU it runs on the CPU. Every
kernel is compiled from nothing: caches of earlier runs are not used.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from bench import minilm, train
from bench.timing import interleaved_gpu_medians, interleaved_medians
from bench.variants import DEMO, HEAD_DIM, HEADS, LENGTH, Variant
from tests.support.corpus import Mods
from tests.support.reference import attention

BlockMask = torch_flex.BlockMask
Attention = Callable[..., Any]

HEADER = (
    f"{'':21}{'max error':>10}{'bound':>9}{'flexc':>10}{'torch':>10}"
    f"{'torch /':>9}{'compile, s':>17}\n"
    f"{'variant':21}{'':>10}{'':>9}{'ms':>10}{'ms':>10}"
    f"{'flexc':>9}{'flexc':>9}{'torch':>8}"
)


@dataclass(frozen=True)
class Row:
    """What one variant gave. Times of torch are None where it failed."""

    title: str
    error: float
    bound: float
    milliseconds: float
    compile_seconds: float
    torch_milliseconds: float | None = None
    torch_compile_seconds: float | None = None
    torch_failure: str | None = None

    @property
    def agrees(self) -> bool:
        return self.error <= self.bound

    @property
    def speedup(self) -> float | None:
        if self.torch_milliseconds is None:
            return None
        return self.torch_milliseconds / self.milliseconds

    def __str__(self) -> str:
        return (
            f"{self.title:21}{self.error:10.1e}{self.bound:9.0e}"
            f"{self.milliseconds:10.2f}{_cell(self.torch_milliseconds, 10, 2)}"
            f"{_cell(self.speedup, 9, 2)}{self.compile_seconds:9.2f}"
            f"{_cell(self.torch_compile_seconds, 8, 2)}"
            f"{'' if self.agrees else '  WRONG'}"
        )


def _cell(number: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if number is None else f"{number:{width}.{digits}f}"


def first_call(run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """The result of a call that compiles, and its seconds."""
    start = time.perf_counter()
    out = run()
    if out.is_cuda:
        torch.cuda.synchronize()
    return out, time.perf_counter() - start


def block_mask_of(variant: Variant, mods: Mods, device: str) -> BlockMask | None:
    """torch's BlockMask for a variant's mask, which its own attention needs."""
    mask_mod = mods[1]
    if mask_mod is None:
        return None
    heads = HEADS if variant.mask_per_head else None
    return torch_flex.create_block_mask(
        mask_mod, None, heads, LENGTH, LENGTH, device=device
    )


def torch_run(
    inputs: tuple[Tensor, Tensor, Tensor], **arguments: Any
) -> Callable[[], Tensor]:
    """torch's compiled flex_attention."""
    torch._dynamo.reset()
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)

    def run() -> Tensor:
        out = compiled(*inputs, **arguments)
        assert isinstance(out, Tensor)
        return out

    return run


def measure(variant: Variant, flex_attention: Attention, device: str) -> Row:
    """Compile, check and time one variant."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs, mods = variant.inputs(device, dtype), variant.mods(device)
    gqa = variant.kv_heads != HEADS
    arguments = {"score_mod": mods[0], "enable_gqa": gqa}

    def run() -> Tensor:
        return flex_attention(*inputs, mask_mod=mods[1], **arguments)

    out, compile_seconds = first_call(run)
    exact = attention(*inputs, *mods, enable_gqa=gqa).out
    unfused = attention(*inputs, *mods, enable_gqa=gqa, precision=dtype).out
    error = (out - exact).abs().max().item()
    bound = 2 * (unfused.to(dtype) - exact).abs().max().item() + 1e-6
    runs = {"flexc": run}
    torch_seconds = failure = None
    try:
        block_mask = block_mask_of(variant, mods, device)
        beside = torch_run(inputs, block_mask=block_mask, **arguments)
        _, torch_seconds = first_call(beside)
        runs["torch"] = beside
    except Exception as e:  # torch's limits are part of the result
        failure = f"{type(e).__name__}: {str(e).strip().splitlines()[0]}"
    medians = interleaved_medians if device == "cpu" else interleaved_gpu_medians
    ms = {name: 1e3 * seconds for name, seconds in medians(runs).items()}
    return Row(
        variant.title,
        error if math.isfinite(error) else math.inf,
        bound,
        ms["flexc"],
        compile_seconds,
        ms.get("torch"),
        torch_seconds,
        failure,
    )


def show_variants(
    flex_attention: Attention, device: str, variants: Sequence[Variant] = DEMO
) -> bool:
    """Print the table; whether all results are right."""
    print(
        f"1. {len(variants)} attention variants, {HEADS} heads, {LENGTH} tokens, head "
        f"dimension {HEAD_DIM}, on {device}\n\n"
        "   Errors are against dense attention in float64, and at most twice that of\n"
        "   unfused attention in the inputs' precision. Times are medians of calls\n"
        "   that take turns; torch is torch.compile(flex_attention). Where there is a\n"
        "   mask, torch is given a BlockMask that was made before, flexc the function\n"
        "   itself: it plans at each call what has no bounds in closed form.\n"
    )
    print(HEADER)
    rows: list[Row] = []
    for variant in variants:
        rows.append(measure(variant, flex_attention, device))
        print(rows[-1], flush=True)
    for row in rows:
        if row.torch_failure:
            print(f"\ntorch on {row.title}: {row.torch_failure[:200]}")
    speedups = [row.speedup for row in rows if row.speedup]
    if speedups:
        print(
            f"\nflexc is faster than torch on {sum(s > 1 for s in speedups)} of "
            f"{len(speedups)} variants, {geometric_mean(speedups):.2f} times as fast "
            "in the geometric mean"
        )
    return all(row.agrees for row in rows)


def geometric_mean(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def start_compilers(flex_attention: Attention, device: str) -> None:
    """Compile something once, so that no row pays for loading a compiler."""
    query = torch.zeros(1, 1, 128, 16, device=device)
    flex_attention(query, query, query)
    torch.compile(torch_flex.flex_attention)(query, query, query)


def run(flex_attention: Attention) -> bool:
    """The whole demonstration with one implementation of flex_attention."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    warnings.filterwarnings("ignore", module="torch.*")
    start_compilers(flex_attention, device)
    right = show_variants(flex_attention, device)
    print("\n2. A pretrained sentence encoder (MiniLM) with flexc as its attention\n")
    right &= minilm.report()
    print("\n3. A language model that learns, with flexc and with dense attention\n")
    return train.report(flex_attention) and right


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="flexc-demo-") as caches:
        os.environ["FLEXC_CACHE_DIR"] = os.path.join(caches, "flexc")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(caches, "torch")
        import flexc

        return 0 if run(flexc.flex_attention) else 1


if __name__ == "__main__":
    sys.exit(main())
