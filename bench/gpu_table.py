"""What the benchmarks of both directions share: sizes, results and how they print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.timing import interleaved_gpu_medians, interleaved_medians

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Run = Callable[[], Any]


@dataclass(frozen=True)
class Setup:
    """The sizes of a benchmark: those of the published figures by default."""

    head_dim: int = 128
    seq: int = 8192
    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    heads: int = 16
    rounds: int = 40
    device: str = "cuda"

    def draw(self) -> Tensor:
        """A random tensor of the shape of a query."""
        shape = (self.batch, self.heads, self.seq, self.head_dim)
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        return self.draw(), self.draw(), self.draw()

    def medians(self, runs: dict[str, Run]) -> dict[str, float]:
        """Median seconds of runs that take turns."""
        if self.device == "cuda":
            return interleaved_gpu_medians(runs, self.rounds)
        return interleaved_medians(runs, self.rounds)


@dataclass(frozen=True)
class Result:
    """TFLOP/s of each contestant, and flexc's error beside that of a peer."""

    name: str
    tflops: dict[str, float]
    error: float
    peer_error: float
    slack: float = 1e-6
    """An error that is nobody's fault."""
    note: str = ""

    @property
    def right(self) -> bool:
        return self.error <= 2 * self.peer_error + self.slack


@dataclass(frozen=True)
class Table:
    """Results below each other."""

    contestants: Sequence[str]
    peer: str
    """Whose error stands beside flexc's."""

    @property
    def header(self) -> str:
        names = "".join(f"{name:>9}" for name in self.contestants)
        width = 9 * len(self.contestants)
        return (
            f"{'':14}{'error':>10}{self.peer:>10}{names}{'flexc /':>10}\n"
            f"{'variant':14}{'':>10}{'error':>10}{'TFLOP/s':>{width}}{'torch':>10}"
        )

    def row(self, result: Result) -> str:
        ratio = float("nan")
        if "torch" in result.tflops:
            ratio = result.tflops["flexc"] / result.tflops["torch"]
        return (
            f"{result.name:14}{result.error:10.1e}{result.peer_error:10.1e}"
            f"{''.join(self.cell(result, name) for name in self.contestants)}"
            f"{_number(ratio, 10, 2)}{'' if result.right else '  WRONG'}{result.note}"
        )

    def cell(self, result: Result, name: str) -> str:
        return _number(result.tflops.get(name, float("nan")), 9, 0)


def _number(value: float, width: int, digits: int) -> str:
    """A number in a column; a dash if there is none."""
    return f"{value:{width}.{digits}f}" if value == value else f"{'-':>{width}}"
