"""Results as a table: a line for each system of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.host.cells import Cell
from bench.host.results import Row, Rows

LEGEND = """\
Microseconds of a call; medians, of systems that take turns in one process
  host      until it returns, done or not; `loop` back to back, until the device is done
  kernels   those that compute attention; `device` all that a GPU is given, `n` of them
  rest      of a call on a CPU, where flexc's kernels are known and no one else's
/kernels    loop by kernels: 1 where the kernel is all that matters
/sdpa, /torch  host by theirs. SDPA has no mods: it is causal where others have some"""

OTHERS = {"sdpa": "/sdpa", "torch-flex": "/torch"}
WIDTH = 10


def table(machine: str, rows: Rows) -> str:
    cells = dict.fromkeys(cell for cell, _ in rows)
    lines = (line for cell in cells for line in lines_of(rows, cell))
    return "\n".join([machine, "", LEGEND, "", header(), *lines])


def header() -> str:
    names = ("host", "loop", "kernels", "device", "rest", "n", "/kernels")
    cell = f"{'shape':20} {'variant':17} {'mode':8} {'pass':9} {'system':14}"
    return cell + "".join(f"{name:>{WIDTH}}" for name in (*names, *OTHERS.values()))


def lines_of(rows: Rows, cell: Cell) -> Iterator[str]:
    found = {system: row for (of, system), row in rows.items() if of == cell}
    for system, row in found.items():
        name = f"{cell.shape!s:20} {cell.variant:17} {cell.mode:8} {cell.kind:9}"
        columns = [*figures(row), *ratios(row, (found.get(o) for o in OTHERS))]
        yield f"{name} {system:14}" + "".join(columns)


def figures(row: Row) -> Iterator[str]:
    for value in (row.host, row.back_to_back, row.kernels, row.device, row.rest):
        yield number(value, 1)
    yield number(row.launches, 0)
    yield number(row.kernels and row.back_to_back / row.kernels, 2)


def ratios(row: Row, others: Iterable[Row | None]) -> Iterator[str]:
    for other in others:
        yield number(other and row.host / other.host, 2)


def number(value: float | None, digits: int) -> str:
    """A number in a column; a dash if there is none."""
    return f"{'-' if value is None else f'{value:.{digits}f}':>{WIDTH}}"
