"""Results and the file that keeps them, `bench/results/<gpu>-<date>.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
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

    @property
    def cell(self) -> Cell:
        return Cell(self.variant, self.head_dim, self.seq, self.direction)


class Key(NamedTuple):
    """What there is one row of."""

    cell: Cell
    system: str


@dataclass(frozen=True)
class Results:
    """All rows of one machine and day, and of one way to take the time."""

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

    def ratio(self, cell: Cell, system: str, others: Iterable[str]) -> float | None:
        """How much faster one is than the best of the others."""
        own = self.tflops(cell, system)
        found = [self.tflops(cell, other) for other in others]
        best = max((figure for figure in found if figure), default=None)
        return own / best if own and best else None

    @classmethod
    def load(cls, path: Path) -> Results:
        machine, rows = files.load(path)
        return cls(machine, tuple(Row(**row) for row in rows))

    def save(self, path: Path) -> None:
        files.save(path, self.machine, map(asdict, self.rows))


def way(paused: bool) -> str:
    """How calls follow one another."""
    return "paused" if paused else "back to back"


def fa4_version() -> str | None:
    try:
        return version("flash-attn-4")
    except PackageNotFoundError:
        return None


def machine(*last: str) -> str:
    """The GPU, the versions of what was measured on it, and what else is to be said."""
    import triton

    found = [torch.cuda.get_device_name(), f"torch {torch.__version__}"]
    found.append(f"triton {triton.__version__}")
    cudnn = torch.backends.cudnn.version()
    if cudnn:
        found.append(f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}")
    if fa4 := fa4_version():
        found.append(f"flash-attn-4 {fa4}")
    return ", ".join((*found, *last))


def stored(path: Path, machine: str) -> Results:
    """What was measured here before, on the same day."""
    if not path.exists():
        return Results(machine)
    return replace(Results.load(path), machine=machine)
