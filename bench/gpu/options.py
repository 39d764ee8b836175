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


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.gpu",
        description="flexc beside torch's flex attention, cuDNN and FlashAttention-4.",
        epilog="Cells are measured in the order in which --seq, --direction, "
        "--head-dim and --variants name them, lengths outermost: what comes first is "
        "measured before a --budget is spent.",
    )
    many: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    numbers: dict[str, Any] = {"nargs": "+", "type": int, "metavar": "N"}
    file: dict[str, Any] = {"type": Path, "metavar": "JSON"}
    names = list(ANCHORS)
    add = found.add_argument
    add("--variants", choices=VARIANTS, default=names, **many)
    add("--systems", choices=[*SYSTEMS, MATMUL], default=list(DEFAULT), **many)
    add("--direction", choices=[*DIRECTIONS, "both"], default="both")
    add("--head-dim", default=list(HEAD_DIMS), **numbers)
    add("--seq", default=list(SEQS), help="2048 and 32768, say", **numbers)
    add("--dtype", choices=DTYPES, default="bf16", help="fp16 is not written to a file")
    add("--paused", action="store_true", help="time single calls with pauses between")
    add("--rounds", type=int, default=40, help="at most, of each cell")
    add("--seconds", type=float, default=1.5, help="about, of each cell's rounds")
    add("--budget", type=float, metavar="SECONDS", help="begin no cell after that long")
    add("--jobs", type=int, default=default_jobs(), help="processes that compile first")
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
