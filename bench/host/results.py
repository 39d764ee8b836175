"""Results and the file that keeps them, `bench/results/<machine>-host-<date>.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import files
from bench.cpu.results import machine as processor
from bench.gpu.results import machine as gpu
from bench.host.cells import Cell, Shape


@dataclass(frozen=True)
class Row:
    """One system's result on one cell; times are microseconds of a call."""

    variant: str
    shape: str
    mode: str
    kind: str
    system: str
    host: float
    back_to_back: float
    kernels: float | None = None
    """Of those that compute attention and its gradients; of a CPU all of flexc's."""
    device: float | None = None
    """Of all that a GPU is given for a call: plans, copies and fills too."""
    rest: float | None = None
    """Of a call on a CPU what is not flexc's kernels."""
    launches: int | None = None

    @property
    def cell(self) -> Cell:
        return Cell(self.variant, Shape.parse(self.shape), self.mode, self.kind)


Rows = dict[tuple[Cell, str], Row]
"""By cell and system, in the order in which they were first measured."""


def by_key(rows: Iterable[Row]) -> Rows:
    return {(row.cell, row.system): row for row in rows}


def load(path: Path) -> tuple[str, Rows]:
    """The machine, and rows."""
    machine, rows = files.load(path)
    return machine, by_key(Row(**row) for row in rows)


def save(path: Path, machine: str, rows: Rows) -> None:
    files.save(path, machine, map(asdict, rows.values()))


def machine(device: str) -> str:
    return gpu() if device == "cuda" else processor()


def path_of(machine: str, folder: Path) -> Path:
    """Background the file of the machine's other results."""
    name, _, _ = machine.partition(",")
    return files.path_of(f"{name} host", folder)
