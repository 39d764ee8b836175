"""flexc beside torch on a CPU.

    python -m bench.cpu --variants dense causal --shapes s4k --threads 2
    python -m bench.cpu --memory

Every cell is written to `bench/results/<cpu>-<date>.json` as soon as it is measured,
and takes the place of an earlier result of that day and number of threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.cpu import report
from bench.cpu.cells import DIRECTIONS, DTYPES, SHAPES, VARIANTS, Cell, cells
from bench.cpu.contest import SYSTEMS
from bench.cpu.measure import Measured, measure
from bench.cpu.memory import growth
from bench.cpu.results import Results, machine, stored
from bench.files import FOLDER, path_of

QUICK = {"shapes": ["s1k", "decode"], "rounds": 3, "seconds": 1.0}
"""What `--quick` stands for."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.cpu", description=__doc__)
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    shapes = [f"  {name:10} {shape.described}" for name, shape in SHAPES.items()]
    found.epilog = "\n".join(["shapes, queries x keys:", *shapes])
    add = found.add_argument
    for option, names, default in (
        ("--variants", VARIANTS, list(VARIANTS)),
        ("--shapes", SHAPES, list(SHAPES)),
        ("--dtypes", DTYPES, ["fp32", "bf16"]),
        ("--systems", SYSTEMS, list(SYSTEMS)),
    ):
        about = f"of {' '.join(names)}"
        if len(default) < len(names):
            about += f" (by default {' '.join(default)})"
        add(
            option,
            nargs="+",
            metavar="NAME",
            choices=names,
            default=default,
            help=about,
        )
    both = [*DIRECTIONS, "both"]
    add("--direction", choices=both, default="both", help="forward, gradients or both")
    add("--threads", type=int, help="torch's own number if absent")
    add("--rounds", type=int, default=7, help="at most, of each cell (%(default)s)")
    add("--seconds", type=float, default=15.0, help="about, of each cell (%(default)s)")
    add("--quick", action="store_true", help="short calls and few rounds: some minutes")
    add("--memory", action="store_true", help="measure memory at s16k; no times")
    add("--results", type=Path, default=FOLDER, help="folder of the JSON and the plot")
    add("--show", type=Path, metavar="JSON", help="print and draw a file; run nothing")
    return found


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; whether flexc was right everywhere."""
    path = path_of(machine(), options.results)
    results = stored(path, machine())
    threads = torch.get_num_threads()
    print(f"{results.machine}, {threads} threads\n\n{report.LEGEND}\n")
    print(report.header(), flush=True)
    wrong: list[Cell] = []
    told: set[str] = set()
    both = options.direction == "both"
    directions = DIRECTIONS if both else (options.direction,)
    for cell in cells(options.variants, options.shapes, options.dtypes, directions):
        measured = measure(
            cell, options.systems, rounds=options.rounds, seconds=options.seconds
        )
        results = results.with_rows(measured.rows)
        results.save(path)
        tell(report.line(results.of_threads(threads), cell), measured, told)
        wrong += [cell] if measured.failed and "flexc" in options.systems else []
    print("", *report.means(results.of_threads(threads)), sep="\n")
    print(f"\nwritten to {path}")
    draw(results, path)
    for cell in wrong:
        print(f"FAILED: {cell}")
    return 1 if wrong else 0


def tell(line: str, measured: Measured, told: set[str]) -> None:
    """A line of the table, and what is new of why systems were left out."""
    print(f"{line}  {measured.errors or ''}", flush=True)
    for note in measured.notes:
        if note not in told:
            print(f"    {note}", flush=True)
            told.add(note)


def draw(results: Results, path: Path) -> None:
    try:
        from bench.cpu.plot import draw as draw_plot

        draw_plot(results, path.with_suffix(".png"))
    except ImportError as error:
        print(f"no plot was drawn: {error}")


def memory(options: argparse.Namespace) -> int:
    """Print what calls of (1, 4, 16384, 64) need besides inputs and outputs."""
    print(
        f"{machine()}, {torch.get_num_threads()} threads: MB beside inputs and output"
    )
    for cell in cells(options.variants, ["s16k"], options.dtypes, DIRECTIONS):
        for system in options.systems:
            try:
                found = growth(cell, system)
            except Exception as error:  # the others' limits are part of the result
                print(f"{cell} {system}: {type(error).__name__}")
                continue
            if found is not None:
                print(f"{cell} {system}: {found:.1f}", flush=True)
    return 0


def show(path: Path) -> int:
    """Print and draw what was measured before."""
    results = Results.load(path)
    print(report.table(results))
    draw(results, path)
    return 0


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.show:
        if not options.show.is_file():
            parser().error(f"argument --show: no file {options.show}")
        return show(options.show)
    if options.quick:
        vars(options).update(QUICK)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        return memory(options) if options.memory else run(options)
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    sys.exit(main())
