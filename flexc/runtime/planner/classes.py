"""Runs of plans: find the class of each block, on the device and without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flexc.frontend.closures import ModSignature
from flexc.passes.flex.planning.kernel_builder import (
    DEAD,
    FULL,
    PARTIAL,
    TILE_COLUMNS,
    TILE_ROWS,
    UNKNOWN,
)
from flexc.passes.flex.planning.summarize import TILE
from flexc.passes.scalar.variation import Along
from flexc.runtime.planner.ordering import threads_for
from flexc.runtime.planner.plans import FIRST, Plan, PlanKernels, Problem

__all__ = ["DEAD", "FULL", "PARTIAL", "UNKNOWN", "Planning"]


@dataclass(frozen=True, eq=False)
class Planning:
    """A plan applied to one problem.

    `whole` holds the numbers of blocks of rows and of columns that may be full.
    """

    problem: Problem
    kernels: PlanKernels
    captures: Sequence[Any]
    device: torch.device
    whole: tuple[int, int]
    refine: bool
    """True if the pairs of unknown blocks are evaluated."""

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
        """Collapse batches and heads with equal masks; start to compile the kernels."""
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
        """Return the classes of `count` rows of blocks from row `first` on.

        The shape is (batches, heads, count, columns), the dtype int8.
        """
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
            # On a GPU, checking the flags would wait for the device, so always
            # evaluate.
            is_open = self.device.type != "cpu" or bool(flags.any())
            if is_open and name in self.kernels:
                self.run(name, count * tiles, args)
        return classes

    @property
    def lead(self) -> tuple[int, int]:
        """The numbers of batches and of heads with masks of their own."""
        return self.problem.batches, self.problem.heads

    def arguments(self, first: int) -> list[Any]:
        """Return the arguments that all kernels take before the classes.

        The numbers are in the order of `NUMBERS`.
        """
        p = self.problem
        numbers = (p.q_len, p.kv_len, p.q_block, p.kv_block, first, *self.whole)
        return [*self.captures, *numbers]

    def run(self, name: str, programs: int, args: Sequence[Any]) -> None:
        b, h = self.problem.batches, self.problem.heads
        threads = None
        if self.kernels.build.for_cpu and name != "refine":
            threads = threads_for(b * h * programs)
        self.kernels[name].run(b, h, programs, args, threads=threads)


def collapsed(problem: Problem, along: Along) -> Problem:
    """Return the problem with one batch, or head, if all have the same mask."""
    batches = problem.batches if Along.BATCH in along else 1
    heads = problem.heads if Along.HEAD in along else 1
    return replace(problem, batches=batches, heads=heads)


def whole_blocks(problem: Problem) -> tuple[int, int]:
    """Return the numbers of blocks of rows and columns that torch may call full.

    A block that extends past the lengths is never full: torch pads the mask with dead
    pairs.
    """
    return problem.q_len // problem.q_block, problem.kv_len // problem.kv_block


def expanded(tables: list[Tensor], problem: Problem) -> list[Tensor]:
    """Expand tables with one batch or head to all batches and heads of a problem.

    Each expanded table has memory of its own, as in torch, since some users take views
    of tables.
    """
    lead = (problem.batches, problem.heads)
    if tables[0].shape[:2] == lead:
        return tables
    return [t.expand(*lead, *t.shape[2:]).contiguous() for t in tables]
