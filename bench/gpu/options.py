"""The arguments of `python -m bench.gpu`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.files import FOLDER
from bench.gpu.cells import DIRECTIONS, HEAD_DIMS, SEQS, VARIANTS, Cell, cells
from bench.gpu.problem import DTYPES
from bench.gpu.systems import DEFAULT, MATMUL, SYSTEMS
from bench.variants import ANCHORS

DESCRIPTION = """flexc beside torch's flex attention, cuDNN and FlashAttention-4.

    python -m bench.gpu --direction fwd --head-dim 128 --variants dense causal
    python -m bench.gpu --seq 2048 32768 --budget 120

All systems take turns in one process, so ratios hold. Calls are back to back, as in a
program; `--paused` times single ones, before which the GPU rests and so runs faster.
Every cell is written to `bench/results/<gpu>-<date>.json` (`-paused`) as soon as it is
measured, and takes the place of an earlier result of that day. The plot lies beside it.
FlashAttention-4 takes part if the package flash-attn-4 is installed.
"""

EPILOG = """Cells are measured in the order in which --seq, --direction, --head-dim and
--variants name them, lengths outermost: what comes first is measured before a --budget
is spent.
"""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.gpu", description=DESCRIPTION, epilog=EPILOG
    )
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    numbers: dict[str, Any] = {"nargs": "+", "type": int, "metavar": "N"}
    file: dict[str, Any] = {"type": Path, "metavar": "JSON"}
    add = found.add_argument
    for option, names, default in (
        ("--variants", list(VARIANTS), list(ANCHORS)),
        ("--systems", [*SYSTEMS, MATMUL], list(DEFAULT)),
    ):
        few: dict[str, Any] = {"nargs": "+", "choices": names, "metavar": "NAME"}
        told = f"of {' '.join(names)} (by default {' '.join(default)})"
        add(option, default=default, help=told, **few)
    add("--direction", choices=[*DIRECTIONS, "both"], default="both")
    add("--head-dim", default=list(HEAD_DIMS), help="(128 64 256)", **numbers)
    add("--seq", default=list(SEQS), help="tokens (8192)", **numbers)
    add("--dtype", choices=DTYPES, default="bf16", help="fp16 is not written to a file")
    add("--paused", action="store_true", help="time single calls with pauses between")
    add("--rounds", type=int, default=40, help="at most, of each cell (%(default)s)")
    add("--seconds", type=float, default=1.5, help="about, of each cell (%(default)s)")
    add("--budget", type=float, metavar="SECONDS", help="begin no cell after that long")
    jobs = "processes that compile first (half of the cores)"
    add("--jobs", type=int, default=default_jobs(), help=jobs)
    add("--unchecked", action="store_true", help="hold results to nothing")
    add("--results", type=Path, default=FOLDER, help="folder of the JSON and the plot")
    add("--plot", help="print and draw a file; run nothing", **file)
    add("--merge", help="add its rows to the file of its name; run nothing", **file)
    return found


def default_jobs() -> int:
    """Half of the cores: compilers of C++ and of GPU code have threads of their own."""
    return max(1, (os.cpu_count() or 1) // 2)


def cells_of(options: argparse.Namespace) -> list[Cell]:
    both = options.direction == "both"
    directions: Sequence[str] = DIRECTIONS if both else (options.direction,)
    return cells(options.variants, options.head_dim, options.seq, directions)
