"""Running a plan: the class of every block, on the device and without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flexc.frontend.closures import ModSignature
from flexc.passes.flex.planning.program import (
    DEAD,
    FULL,
    PARTIAL,
    TILE_COLUMNS,
    TILE_ROWS,
    UNKNOWN,
)
from flexc.passes.flex.planning.summaries import TILE
from flexc.passes.scalar.dependence import Along
from flexc.runtime.planner.ordering import threads_for
from flexc.runtime.planner.plans import FIRST, Plan, PlanKernels, Problem

__all__ = ["DEAD", "FULL", "PARTIAL", "UNKNOWN", "Planning"]


@dataclass(frozen=True, eq=False)
class Planning:
    """A plan at work on one problem.

    `whole` are the numbers of blocks of rows and of columns that may be full.
    """

    problem: Problem
    kernels: PlanKernels
    captures: Sequence[Any]
    device: torch.device
    whole: tuple[int, int]
    refine: bool
    """Whether pairs of the blocks that remain unknown are looked at."""

    @classmethod
    def start(
        cls,
        plan: Plan,
        signature: ModSignature,
        problem: Problem,
        device: torch.device,
        whole: tuple[int, int],
        refine: bool = False,
    ) -> Planning:
        """Take away batches and heads that look alike; start to compile kernels."""
        captures = plan.attention.arguments(signature.captures)
        kernels = plan.kernels(problem, captures)
        kernels.start(*FIRST, *("sample",) * refine)
        problem = collapsed(problem, plan.along)
        return cls(problem, kernels, captures, device, whole, refine)

    @cached_property
    def summaries(self) -> tuple[Tensor, ...]:
        """The least and greatest captured values of blocks of rows and columns."""
        problem, dtypes = self.problem, self.kernels.summaries
        if not dtypes:
            return ()
        blocks = max(problem.rows, problem.columns)
        shape = (problem.batches, problem.heads, blocks)
        tensors = tuple(
            torch.empty(shape, dtype=dtype, device=self.device) for dtype in dtypes
        )
        args = [*self.arguments(0), None, None, *tensors]
        self.run("summarize", -(-blocks // TILE), args)
        return tensors

    def classify(self, first: int, count: int) -> Tensor:
        """(batches, heads, count, columns): classes from block row `first` on."""
        lead, columns = self.lead, self.problem.columns
        tiles = -(-columns // TILE_COLUMNS)
        classes = torch.empty(
            (*lead, count, columns), dtype=torch.int8, device=self.device
        )
        flags = torch.empty(
            (*lead, tiles, count), dtype=torch.int32, device=self.device
        )
        args = [*self.arguments(first), classes, flags, *self.summaries]
        self.run("classify", -(-count // TILE_ROWS) * tiles, args)
        for name in ("sample", "refine") if self.refine else ():
            # To look whether anything is unknown, a GPU would have to be waited for.
            is_open = self.device.type != "cpu" or bool(flags.any())
            if is_open and name in self.kernels:
                self.run(name, count * tiles, args)
        return classes

    @property
    def lead(self) -> tuple[int, int]:
        """Batches and heads that may look different."""
        return self.problem.batches, self.problem.heads

    def arguments(self, first: int) -> list[Any]:
        """What all kernels take, up to the classes; `NUMBERS` says in which order."""
        p = self.problem
        numbers = (p.q_len, p.kv_len, p.q_block, p.kv_block, first, *self.whole)
        return [*self.captures, *numbers]

    def run(self, name: str, programs: int, args: Sequence[Any]) -> None:
        b, h = self.problem.batches, self.problem.heads
        threads = None
        if self.kernels.target == "cpp" and name != "refine":
            threads = threads_for(b * h * programs)
        self.kernels[name].run(b, h, programs, args, threads=threads)


def collapsed(problem: Problem, along: Along) -> Problem:
    """The problem with one batch and one head where the mask is the same for all."""
    batches = problem.batches if Along.BATCH in along else 1
    heads = problem.heads if Along.HEAD in along else 1
    return replace(problem, batches=batches, heads=heads)


def whole_blocks(problem: Problem) -> tuple[int, int]:
    """The blocks that torch may call full: what it pads the mask with is dead."""
    return problem.q_len // problem.q_block, problem.kv_len // problem.kv_block


def expanded(tables: list[Tensor], problem: Problem) -> list[Tensor]:
    """Tables of a mask that is the same for all batches or heads, for each of them.

    Each has memory of its own, as torch's have: some users take views of them.
    """
    lead = (problem.batches, problem.heads)
    if tables[0].shape[:2] == lead:
        return tables
    return [t.expand(*lead, *t.shape[2:]).contiguous() for t in tables]
