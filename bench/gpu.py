"""flexc, torch.compile(flex_attention) and cuDNN side by side on a GPU, forward.

`make bench`, or `python -m bench.gpu --head-dim 128 --seq 8192 --dtype bf16`.
Each result is checked before it is timed. Masked variants run in three ways: `flexc`
is given a BlockMask of `flexc.create_block_mask`, `mask_mod` the bare function (which
it plans anew at every call where the mask has no bounds in closed form), `tables`
the BlockMask that torch made and is given itself. TFLOP/s count unmasked pairs only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.timing import interleaved_gpu_medians
from bench.variants import ANCHORS, Anchor
from tests.reference import attention, visible_pairs

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Run = Callable[[], Any]


@dataclass(frozen=True)
class Setup:
    """The sizes of a benchmark: those of the published figures by default."""

    head_dim: int = 128
    seq: int = 8192
    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    rounds: int = 40

    @property
    def heads(self) -> int:
        return 8 if self.head_dim > 128 else 16

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        shape = (self.batch, self.heads, self.seq, self.head_dim)

        def draw() -> Tensor:
            return torch.randn(shape, device="cuda", dtype=self.dtype)

        return draw(), draw(), draw()


@dataclass(frozen=True)
class Result:
    """TFLOP/s of each contestant, and flexc's error beside torch's own."""

    name: str
    tflops: dict[str, float]
    error: float
    unfused_error: float

    @property
    def right(self) -> bool:
        return self.error <= 2 * self.unfused_error + 1e-6

    def cell(self, name: str) -> str:
        return f"{self.tflops[name]:9.0f}" if name in self.tflops else f"{'-':>9}"

    def __str__(self) -> str:
        ratio = self.tflops["flexc"] / self.tflops["torch"]
        return (
            f"{self.name:10}{self.error:11.1e}{self.unfused_error:11.1e}"
            f"{''.join(self.cell(name) for name in CONTESTANTS)}{ratio:11.2f}"
            f"{'' if self.right else '  WRONG'}"
        )


OWN = ("flexc", "mask_mod", "tables")
CONTESTANTS = (*OWN, "torch", "cudnn")

HEADER = (
    f"{'':10}{'error':>11}{'unfused':>11}"
    f"{''.join(f'{name:>9}' for name in CONTESTANTS)}{'flexc /':>11}\n"
    f"{'variant':10}{'':>11}{'error':>11}{'TFLOP/s':>{9 * len(CONTESTANTS)}}"
    f"{'torch':>11}"
)


def contestants(
    anchor: Anchor, setup: Setup
) -> tuple[dict[str, Run], float, float, int]:
    """Runs by name, flexc's and the unfused error, and pairs per head."""
    query, key, value = setup.inputs()
    mods = anchor.build(setup.batch, setup.heads, setup.seq, setup.dtype)
    score_mod, mask_mod = mods
    block_mask = mask_mod and torch_flex.create_block_mask(
        mask_mod, None, None, setup.seq, setup.seq, device="cuda"
    )
    own_mask = mask_mod and flexc.create_block_mask(
        mask_mod, None, None, setup.seq, setup.seq, device="cuda"
    )
    torch._dynamo.reset()
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)

    def flexc_run(**mask: Any) -> Run:
        return lambda: flexc.flex_attention(
            query, key, value, score_mod=score_mod, **mask
        )

    def torch_run() -> Any:
        return compiled(query, key, value, score_mod=score_mod, block_mask=block_mask)

    def cudnn_run() -> Any:
        return scaled_dot_product_attention(query, key, value, **(anchor.sdpa or {}))

    runs: dict[str, Run] = {
        "flexc": flexc_run(block_mask=own_mask),
        "mask_mod": flexc_run(mask_mod=mask_mod),
        "tables": flexc_run(block_mask=block_mask),
        "torch": torch_run,
    }
    if mask_mod is None:
        del runs["mask_mod"], runs["tables"]
    if anchor.sdpa is not None and setup.head_dim <= 256:
        runs["cudnn"] = cudnn_run
    first = (query[:1], key[:1], value[:1])
    exact = attention(*first, *mods).out
    unfused = attention(*first, *mods, precision=setup.dtype).out.to(setup.dtype)
    errors = [
        (runs[name]()[:1] - exact).abs().max().item() for name in runs if name in OWN
    ]
    pairs = visible_pairs(mask_mod, 0, setup.seq, setup.seq, "cuda")
    return runs, max(errors), (unfused - exact).abs().max().item(), pairs


def measure(anchor: Anchor, setup: Setup) -> Result:
    """Check one variant, then let all take turns."""
    runs, error, unfused, pairs = contestants(anchor, setup)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        medians = interleaved_gpu_medians(runs, setup.rounds)
    flops = 4 * setup.batch * setup.heads * setup.head_dim * pairs
    tflops = {name: flops / seconds / 1e12 for name, seconds in medians.items()}
    return Result(anchor.name, tflops, error, unfused)


def run(setup: Setup, names: Sequence[str]) -> bool:
    """Print the table; whether all results are right."""
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, forward, "
        f"{setup.dtype}\nB={setup.batch} H={setup.heads} S={setup.seq} "
        f"D={setup.head_dim}, medians of {setup.rounds} interleaved rounds\n\n{HEADER}"
    )
    right = True
    for name in names:
        result = measure(ANCHORS[name], setup)
        print(result, flush=True)
        right &= result.right
    return right


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="flexc beside torch and cuDNN")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--variants", nargs="+", choices=ANCHORS, default=list(ANCHORS), metavar="NAME"
    )
    options = parser.parse_args(args)
    if not torch.cuda.is_available():
        print("bench.gpu needs a GPU, and torch sees none here", file=sys.stderr)
        return 2
    setup = Setup(
        options.head_dim,
        options.seq,
        DTYPES[options.dtype],
        options.batch,
        options.rounds,
    )
    return 0 if run(setup, options.variants) else 1


if __name__ == "__main__":
    sys.exit(main())
