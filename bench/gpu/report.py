"""Results as a table: TFLOP/s of each system, then what they say of flexc's.

`/torch`, `/cuDNN`, `/FA4` are flexc's figure by theirs, of the same run; `/peak` by
that of a large matrix product in the same run; `/no mod` by flexc's own on the same
mask without the score mod. `in a row` and `torch row` are TFLOP/s of flexc's and of
torch's calls back to back: all others are of single ones, with a cold cache, for which
the host has time to spare. The last two columns are FA4's published figure, and flexc's
by that.
"""

from __future__ import annotations

from collections.abc import Collection

from bench.anchors import published
from bench.gpu.cells import Cell
from bench.gpu.results import Results

NAMES = {
    "flexc": "flexc",
    "flexc-without-mod": "no mod",
    "flexc-mask-mod": "planning",
    "flexc-tables": "tables",
    "torch-flex": "torch",
    "torch-flex-flash": "FLASH",
    "cudnn": "cuDNN",
    "fa4": "FA4",
    "matmul": "peak",
}
"""Of columns, by system."""

LOOPS = {"flexc": "in a row", "torch-flex": "torch row"}
"""Columns of calls back to back, by system."""
LAST = ("FA4 pub.", "/pub.")
WIDTH = 10


def table(results: Results) -> str:
    """A line for each cell."""
    systems = {row.system for row in results.rows}
    lines = (line(results, cell, systems) for cell in results.cells)
    return "\n".join([results.machine, "", header(systems), *lines])


def shown(systems: Collection[str]) -> list[str]:
    """In the order of the columns."""
    return [system for system in NAMES if system in systems]


def header(systems: Collection[str]) -> str:
    names = [NAMES[system] for system in shown(systems)]
    names += [f"/{name}" for name in names if name != "flexc"]
    names += [name for system, name in LOOPS.items() if system in systems]
    cell = f"{'variant':14}{'D':>4}{'S':>6} dir"
    return cell + "".join(f"{name:>{WIDTH}}" for name in (*names, *LAST))


def line(results: Results, cell: Cell, systems: Collection[str]) -> str:
    order = shown(systems)
    figures = [number(results.tflops(cell, system), 0) for system in order]
    ratios = [
        number(results.ratio(cell, "flexc", system), 2)
        for system in order
        if system != "flexc"
    ]
    loops = [
        number(results.loop_tflops(cell, system), 0)
        for system in LOOPS
        if system in systems
    ]
    known = published(
        results.machine, cell.head_dim, cell.seq, cell.variant, cell.direction
    )
    own = results.tflops(cell, "flexc")
    last = [number(known, 0), number(own / known if own and known else None, 2)]
    name = f"{cell.variant:14}{cell.head_dim:4}{cell.seq:6} {cell.direction}"
    return name + "".join([*figures, *ratios, *loops, *last])


def number(value: float | None, digits: int) -> str:
    """A number in a column; a dash if there is none."""
    return f"{'-' if value is None else f'{value:.{digits}f}':>{WIDTH}}"
