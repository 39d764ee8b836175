"""Results and the file that keeps them, `bench/results/<gpu>-<date>.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from bench import files
from bench.gpu.cells import Cell


@dataclass(frozen=True)
class Row:
    """One system's result on one cell: TFLOP/s count unmasked pairs only."""

    variant: str
    head_dim: int
    seq: int
    direction: str
    system: str
    ms: float
    tflops: float
    loop_ms: float | None = None
    """Back to back, with all that the host does; None in files of before."""

    @property
    def cell(self) -> Cell:
        return Cell(self.variant, self.head_dim, self.seq, self.direction)


class Key(NamedTuple):
    """What there is one row of."""

    cell: Cell
    system: str


@dataclass(frozen=True)
class Results:
    """All rows of one machine and day."""

    machine: str
    rows: tuple[Row, ...] = ()

    @property
    def by_key(self) -> dict[Key, Row]:
        return {Key(row.cell, row.system): row for row in self.rows}

    @property
    def cells(self) -> list[Cell]:
        """In the order in which they were first measured."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    def with_rows(self, rows: Iterable[Row]) -> Results:
        """A row that was measured again takes the place of the old one."""
        added = {Key(row.cell, row.system): row for row in rows}
        return replace(self, rows=tuple((self.by_key | added).values()))

    def tflops(self, cell: Cell, system: str) -> float | None:
        row = self.by_key.get(Key(cell, system))
        return None if row is None else row.tflops

    def loop_tflops(self, cell: Cell, system: str) -> float | None:
        """Of calls back to back."""
        row = self.by_key.get(Key(cell, system))
        if row is None or row.loop_ms is None:
            return None
        return row.tflops * row.ms / row.loop_ms

    def ratio(self, cell: Cell, system: str, other: str) -> float | None:
        """How much faster one is than the other."""
        a, b = self.tflops(cell, system), self.tflops(cell, other)
        return a / b if a and b else None

    @classmethod
    def load(cls, path: Path) -> Results:
        machine, rows = files.load(path)
        return cls(machine, tuple(Row(**row) for row in rows))

    def save(self, path: Path) -> None:
        files.save(path, self.machine, map(asdict, self.rows))


def machine() -> str:
    """The GPU, and the versions of what was measured on it."""
    import triton

    found = [torch.cuda.get_device_name(), f"torch {torch.__version__}"]
    found.append(f"triton {triton.__version__}")
    cudnn = torch.backends.cudnn.version()
    if cudnn:
        found.append(f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}")
    return ", ".join(found)


def stored(path: Path, machine: str) -> Results:
    """What was measured here before, on the same day."""
    if not path.exists():
        return Results(machine)
    return replace(Results.load(path), machine=machine)
