"""What a call costs besides its kernel, beside torch's flex attention and SDPA.

    python -m bench.host --variants causal document --modes eager graph
    python -m bench.host --device cpu --passes forward --threads 1

Every cell is written to `bench/results/<machine>-host-<date>.json` as soon as it is
measured, and takes the place of an earlier result of that day. A shape is written as
BxHxSxD:dtype, `1x8x1024x64:bf16` say.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.files import FOLDER
from bench.host import report
from bench.host.cells import (
    EAGER,
    FORWARD,
    GRAPH,
    LARGE,
    MODES,
    PASSES,
    SMALL,
    TRAINING,
    VARIANTS,
    Cell,
    Shape,
    cells,
)
from bench.host.measure import Measured, measure
from bench.host.results import by_key, load, machine, path_of, save
from bench.host.systems import DEFAULT, SYSTEMS


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.host", description=__doc__)
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = found.add_argument
    for option, names, default in (
        ("--variants", VARIANTS, list(VARIANTS)),
        ("--systems", SYSTEMS, list(DEFAULT)),
        ("--modes", MODES, list(MODES)),
        ("--passes", PASSES, list(PASSES)),
    ):
        kinds = {"choices": names, "default": default, "help": f"of {' '.join(names)}"}
        add(option, nargs="+", metavar="NAME", **kinds)
    add("--shapes", nargs="+", type=Shape.parse, metavar="SHAPE")
    add("--device", choices=["cuda", "cpu"], default=device)
    add("--threads", type=int, help="of a CPU; torch's own number if absent")
    add("--seconds", type=float, default=0.5, help="about, of each kind of rounds")
    add("--budget", type=float, metavar="SECONDS", help="begin no cell after that long")
    add("--results", type=Path, default=FOLDER, help="folder of the JSON")
    add("--show", type=Path, metavar="JSON", help="print a file; run nothing")
    return found


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Of shapes that are asked for all ways to call; of large ones by default two."""
    modes = [m for m in options.modes if m != GRAPH or options.device == "cuda"]
    if modes != options.modes:
        print("graphs are left out: a CPU has none")
    ways = options.variants, modes, options.passes
    if options.shapes:
        return cells(options.shapes, *ways)
    long = [
        cell
        for cell in cells(LARGE[options.device], *ways)
        if cell.mode == EAGER and cell.kind in (FORWARD, TRAINING)
    ]
    return cells(SMALL[options.device], *ways) + long


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; whether flexc has a result everywhere."""
    name = machine(options.device)
    path = path_of(name, options.results)
    rows = load(path)[1] if path.exists() else {}
    deadline = time.perf_counter() + (options.budget or float("inf"))
    print(f"{name}\n\n{report.LEGEND}\n\n{report.header()}", flush=True)
    told: set[str] = set()
    failed: list[Cell] = []
    asked = cells_of(options)
    for i, cell in enumerate(asked):
        if time.perf_counter() > deadline:
            print(f"the budget is spent: {len(asked) - i} cells are left out")
            break
        measured = measure(
            cell, options.device, options.systems, seconds=options.seconds
        )
        rows |= by_key(measured.rows)
        save(path, name, rows)
        tell(cell, measured, told)
        systems = {row.system for row in measured.rows}
        failed += [cell] if {"flexc"} & set(options.systems) - systems else []
    print(f"\nwritten to {path}")
    for cell in failed:
        print(f"FAILED: {cell}")
    return 1 if failed else 0


def tell(cell: Cell, measured: Measured, told: set[str]) -> None:
    """Lines of the table, and what is new of why systems were left out."""
    print(*report.lines_of(by_key(measured.rows), cell), sep="\n", flush=True)
    for note in measured.notes:
        if note not in told:
            print(f"    {note}", flush=True)
            told.add(note)


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.show:
        print(report.table(*load(options.show)))
        return 0
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        return run(options)
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    sys.exit(main())
