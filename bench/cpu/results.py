"""Results: rows of a machine and a day, and what follows from them."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from bench import files
from bench.cpu.cells import Cell
from flexc.runtime.kernels.cpp_compiler import host_machine


@dataclass(frozen=True)
class Row:
    """One system's result on one cell.

    GFLOP/s count unmasked pairs only; GB/s keys and values, read once. Those of
    "peak" and "read" are the machine's, beside the cell.
    """

    variant: str
    shape: str
    dtype: str
    direction: str
    system: str
    threads: int
    ms: float
    gflops: float
    gbytes: float

    @property
    def cell(self) -> Cell:
        return Cell(self.variant, self.shape, self.dtype, self.direction)


class Key(NamedTuple):
    """What there is one row of."""

    cell: Cell
    system: str
    threads: int


@dataclass(frozen=True)
class Results:
    """All rows of one machine and day."""

    machine: str
    rows: tuple[Row, ...] = ()

    @property
    def by_key(self) -> dict[Key, Row]:
        return {Key(row.cell, row.system, row.threads): row for row in self.rows}

    def of_threads(self, threads: int) -> Results:
        return replace(self, rows=tuple(r for r in self.rows if r.threads == threads))

    @property
    def threads(self) -> list[int]:
        return sorted({row.threads for row in self.rows})

    @property
    def cells(self) -> list[Cell]:
        """In the order in which they were first measured."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    def with_rows(self, rows: Iterable[Row]) -> Results:
        """A row that was measured again takes the place of the old one."""
        added = {Key(row.cell, row.system, row.threads): row for row in rows}
        return replace(self, rows=tuple((self.by_key | added).values()))

    def row(self, cell: Cell, system: str) -> Row | None:
        found = (r for r in self.rows if r.cell == cell and r.system == system)
        return next(found, None)

    def best(self, system: str) -> Row | None:
        """The highest figure of all cells: of "peak" and "read" the limit."""
        found = [row for row in self.rows if row.system == system]
        return max(found, key=lambda r: r.gflops + r.gbytes, default=None)

    def fraction(self, cell: Cell, system: str) -> float | None:
        """Of the machine's limit: of its FMA peak, or to read memory."""
        row, decodes = self.row(cell, system), cell.sizes.decodes
        limit = self.best("read" if decodes else "peak")
        if row is None or limit is None:
            return None
        return row.gbytes / limit.gbytes if decodes else row.gflops / limit.gflops

    def ratio(self, cell: Cell, system: str, other: str) -> float | None:
        """How much faster one is than the other."""
        a, b = self.row(cell, system), self.row(cell, other)
        return None if a is None or b is None else b.ms / a.ms

    @classmethod
    def load(cls, path: Path) -> Results:
        machine, rows = files.load(path)
        return cls(machine, tuple(Row(**row) for row in rows))

    def save(self, path: Path) -> None:
        files.save(path, self.machine, map(asdict, self.rows))


def machine() -> str:
    """The CPU, its vectors, and the version of what was measured on it."""
    return f"{processor_name()}, {host_machine()}, torch {torch.__version__}"


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.machine()).replace(",", " ").strip()


def stored(path: Path, machine: str) -> Results:
    """What was measured here before, on the same day."""
    if not path.exists():
        return Results(machine)
    return replace(Results.load(path), machine=machine)
