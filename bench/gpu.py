"""flexc, torch.compile(flex_attention) and cuDNN side by side on a GPU.

`make bench`, or `python -m bench.gpu --direction bwd --head-dim 128 --seq 8192`.
Each result is checked before it is timed. Masked variants run in several ways: `flexc`
is given a BlockMask of `flexc.create_block_mask`, `mask_mod` the bare function (which
it plans anew at every call where the mask has no bounds in closed form), `tables`
the BlockMask that torch made and is given itself. TFLOP/s count unmasked pairs only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from bench import gpu_backward, gpu_forward
from bench.gpu_table import DTYPES, Setup
from bench.learned import LEARNED
from bench.variants import ANCHORS

VARIANTS = {**ANCHORS, **LEARNED}
"""By name. What learned ones add to the anchors is in their gradients."""

DIRECTIONS = {
    "fwd": ("forward",),
    "bwd": ("backward",),
    "both": ("forward", "backward"),
}


def run(direction: str, setup: Setup, names: Sequence[str]) -> bool:
    """Print the table of a direction; whether all results are right."""
    forward = direction == "forward"
    table = (gpu_forward if forward else gpu_backward).TABLE
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {direction}, "
        f"{setup.dtype}\nB={setup.batch} H={setup.heads} S={setup.seq} "
        f"D={setup.head_dim}, medians of {setup.rounds} interleaved rounds\n\n"
        f"{table.header}"
    )
    right = True
    for name in names:
        if not forward:
            result = gpu_backward.measure(VARIANTS[name], setup)
        elif name in ANCHORS:
            result = gpu_forward.measure(ANCHORS[name], setup)
        else:
            continue
        print(table.row(result), flush=True)
        right &= result.right
    print()
    return right


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description="flexc beside torch and cuDNN")
    found.add_argument("--direction", choices=DIRECTIONS, default="both")
    found.add_argument("--head-dim", type=int, default=128)
    found.add_argument("--seq", type=int, default=8192)
    found.add_argument("--dtype", choices=DTYPES, default="bf16")
    found.add_argument("--batch", type=int, default=2)
    found.add_argument("--rounds", type=int, default=40)
    found.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        metavar="NAME",
    )
    return found


def setup_of(options: argparse.Namespace) -> Setup:
    return Setup(
        options.head_dim,
        options.seq,
        DTYPES[options.dtype],
        options.batch,
        8 if options.head_dim > 128 else 16,
        options.rounds,
    )


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if not torch.cuda.is_available():
        print("bench.gpu needs a GPU, and torch sees none here", file=sys.stderr)
        return 2
    setup = setup_of(options)
    done = [run(d, setup, options.variants) for d in DIRECTIONS[options.direction]]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
