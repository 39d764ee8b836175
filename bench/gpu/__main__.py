"""flexc beside its peers on a GPU: `make bench`. `options` says what it takes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.files import FOLDER, path_of
from bench.gpu import report
from bench.gpu.cells import Cell
from bench.gpu.measure import Measured, measure
from bench.gpu.options import cells_of, parser
from bench.gpu.problem import DTYPES, Setup
from bench.gpu.results import Results, fa4_version, machine, stored, way
from bench.gpu.systems import BY_FA4
from bench.gpu.warm import warm_up

WARMED = 0.6
"""At most so much of a budget goes to compiling ahead."""

PREPARING = 3
"""Seconds, about, that a cell takes before it is timed."""


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; whether flexc was right everywhere."""
    setup, cells = Setup(DTYPES[options.dtype]), cells_of(options)
    systems, here = able(options), machine(way(options.paused))
    path = path_of(here, options.results)
    path = path.with_stem(f"{path.stem}-paused") if options.paused else path
    results = stored(path, here) if options.dtype == "bf16" else Results(here)
    deadline = time.perf_counter() + (options.budget or float("inf"))
    print(f"{here}, {options.dtype}, B=2 H=16 (8 above head dim 128)")
    print(f"{len(cells)} cells, of some {options.seconds + PREPARING:.0f} s each")
    if options.jobs > 1 and len(cells) > 1:
        print(f"{options.jobs} processes compile ahead, for minutes", flush=True)
        limit = None if options.budget is None else WARMED * options.budget
        check = not options.unchecked
        taken = warm_up(cells, setup, systems, options.jobs, limit, check=check)
        print(f"compiled ahead in {taken:.0f} s")
    print(f"\n{report.header(systems)}", flush=True)
    told: set[str] = set()
    failed: list[Cell] = []
    for i, cell in enumerate(cells):
        if time.perf_counter() > deadline:
            print(f"the budget is spent: {len(cells) - i} cells are left out")
            break
        measured = measure(
            cell,
            setup,
            systems,
            rounds=options.rounds,
            seconds=options.seconds,
            check=not options.unchecked,
            paused=options.paused,
        )
        results = results.with_rows(measured.rows)
        if options.dtype == "bf16":
            results.save(path)
        tell(report.line(results, cell, systems), measured, told)
        failed += [cell] if measured.failed else []
    print(f"\n{report.table(results)}")
    if options.dtype == "bf16":
        print(f"\nwritten to {path}")
        draw(results, path)
    for cell in failed:
        print(f"FAILED: {cell}")
    return 1 if failed else 0


def able(options: argparse.Namespace) -> list[str]:
    """The systems that are asked for, without those whose package is missing."""
    if fa4_version():
        # Kept on disk: else those that compile ahead would compile for nothing.
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        return options.systems
    if not set(BY_FA4).isdisjoint(options.systems):
        print("FlashAttention-4 is left out: there is no package flash-attn-4")
    return [system for system in options.systems if system not in BY_FA4]


def tell(line: str, measured: Measured, told: set[str]) -> None:
    """A line of the table, and what is new of why systems were left out."""
    errors = f"  {measured.errors}" if measured.errors else ""
    print(f"{line}{errors}  {measured.kernels}", flush=True)
    for note in measured.notes:
        if note not in told:
            print(f"    {note}", flush=True)
            told.add(note)


def draw(results: Results, path: Path) -> None:
    try:
        from bench.gpu.plot import draw as draw_plot

        draw_plot(results, path.with_suffix(".png"))
    except ImportError as error:
        print(f"no plot was drawn: {error}; `--plot {path}` draws it elsewhere")


def show(path: Path, folder: Path | None = None) -> int:
    """Print what was measured before, and draw it: beside its file, or in a folder."""
    results = Results.load(path)
    print(report.table(results))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / path.name
    draw(results, path)
    return 0


def merge(source: Path, folder: Path) -> int:
    """Add results from elsewhere to those that are kept."""
    added, path = Results.load(source), folder / source.name
    stored(path, added.machine).with_rows(added.rows).save(path)
    return show(path)


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.plot:
        elsewhere = options.results != FOLDER
        return show(options.plot, options.results if elsewhere else None)
    if options.merge:
        return merge(options.merge, options.results)
    if not torch.cuda.is_available():
        print("bench.gpu needs a GPU, and torch sees none here", file=sys.stderr)
        return 2
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
