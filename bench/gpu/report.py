"""Results as tables, in TFLOP/s over unmasked pairs: lines of a run, and Markdown.

`/best` is flexc's figure by that of its best peer of the run; `equal` and `FA4 eq.`
have gradients of equal bits at every run; `peak` is a large matrix product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bench.gpu.cells import DIRECTIONS, Cell
from bench.gpu.results import Results
from bench.gpu.systems import PEERS

NAMES = {
    "flexc": "flexc",
    "flexc-deterministic": "equal",
    "flexc-without-mod": "no mod",
    "flexc-mask-mod": "planning",
    "flexc-tables": "tables",
    "torch-flex": "torch",
    "torch-flex-flash": "FLASH",
    "fa4": "FA4",
    "fa4-deterministic": "FA4 eq.",
    "cudnn": "cuDNN",
    "matmul": "peak",
}
"""Of columns, by system."""

BEST = "/best"
WIDTH = 9


def shown(systems: Collection[str]) -> list[str]:
    """In the order of the columns."""
    return [system for system in NAMES if system in systems]


def header(systems: Collection[str]) -> str:
    names = [NAMES[system] for system in shown(systems)]
    cell = f"{'variant':14}{'D':>4}{'S':>6} dir"
    return cell + "".join(f"{name:>{WIDTH}}" for name in (*names, BEST))


def line(results: Results, cell: Cell, systems: Collection[str]) -> str:
    figures = [number(results.tflops(cell, system), 0) for system in shown(systems)]
    figures.append(number(results.ratio(cell, "flexc", PEERS), 2))
    name = f"{cell.variant:14}{cell.head_dim:4}{cell.seq:6} {cell.direction}"
    return name + "".join(f"{figure:>{WIDTH}}" for figure in figures)


def number(value: float | None, digits: int) -> str:
    """A number in a column; a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(results: Results) -> str:
    """Markdown: a table for each head dim and length, `forward / backward`."""
    sizes = dict.fromkeys((cell.head_dim, cell.seq) for cell in results.cells)
    tables = ("\n".join(rows(results, *size)) for size in sizes)
    return "\n\n".join([results.machine, *tables])


def rows(results: Results, head_dim: int, seq: int) -> Iterator[str]:
    found = [c for c in results.cells if (c.head_dim, c.seq) == (head_dim, seq)]
    cells = set(found)
    systems = shown({row.system for row in results.rows if row.cell in cells})
    names = [NAMES[system] for system in systems]
    yield markdown(f"D={head_dim} S={seq}", *names, BEST)
    yield markdown(*["---"] * (len(systems) + 2))
    for variant in dict.fromkeys(cell.variant for cell in found):
        both = [Cell(variant, head_dim, seq, direction) for direction in DIRECTIONS]
        figures = [
            pair(*(number(results.tflops(cell, system), 0) for cell in both))
            for system in systems
        ]
        ratios = (number(results.ratio(cell, "flexc", PEERS), 2) for cell in both)
        yield markdown(variant, *figures, pair(*ratios))


def pair(forward: str, backward: str) -> str:
    return "-" if forward == backward == "-" else f"{forward} / {backward}"


def markdown(*columns: str) -> str:
    return f"| {' | '.join(columns)} |"
