"""One cell: all systems are run once, checked, and then take turns with the peak."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor

from bench.cpu.cells import (
    DTYPES,
    Cell,
    Shape,
    bytes_of,
    flops_of,
    make_problem,
    problem_of,
)
from bench.cpu.contest import SYSTEMS, Forward, by_flexc
from bench.cpu.peak import fma_burst, read_burst
from bench.cpu.results import Row
from bench.errors import Errors, agrees, forward_errors, gradient_errors, worst
from bench.problem import Problem, gradients
from bench.timing import interleaved_seconds

SMALL = Shape(2, 2, 512, 512, 64)
"""The problem that errors of gradients are measured on."""

PEAK, READ = "peak", "read"

Run = Callable[[], object]


@dataclass
class Measured:
    """The outcome of a cell."""

    cell: Cell
    rows: list[Row] = field(default_factory=list[Row])
    errors: Errors | None = None
    """flexc's; None if it has no result."""
    notes: list[str] = field(default_factory=list[str])
    """Why systems were left out."""

    @property
    def failed(self) -> bool:
        return self.errors is None or not self.errors.right


def measure(
    cell: Cell, systems: Sequence[str], *, rounds: int = 7, seconds: float = 10.0
) -> Measured:
    """Check a cell and let all systems take turns, for about so many seconds."""
    problem, measured = problem_of(cell), Measured(cell)
    runs: dict[str, Run] = {}
    own: Tensor | None = None
    # Else torch runs eagerly what it has compiled too often, by its recompile limit.
    torch._dynamo.reset()
    for name in systems:
        try:
            forward = SYSTEMS[name](problem)
            if forward is None:
                continue
            runs[name], out = started(forward, problem)
        except Exception as error:  # the others' limits are part of the result
            reason = (str(error).strip() or "?").splitlines()[0]
            measured.notes.append(f"{name}: {type(error).__name__}: {reason[:120]}")
            continue
        own = out if name == "flexc" else own
        if own is not None and not agrees(own, out):
            measured.notes.append(f"{name}: computes something else than flexc")
    if own is not None:
        measured.errors = errors_of(cell, problem, own)
    threads = torch.get_num_threads()
    runs[PEAK] = fma_burst(threads).run
    if cell.sizes.decodes:
        runs[READ] = read_burst(threads).run
    times = interleaved_seconds(runs, rounds, seconds)
    measured.rows = [row_of(cell, name, taken) for name, taken in times.items()]
    return measured


def started(forward: Forward, problem: Problem) -> tuple[Run, Tensor]:
    """What is timed, run once, and the output."""
    if not problem.backward:
        run = torch.no_grad()(forward)
        return run, run()
    out = forward()
    run = partial(gradients, out, problem.inputs, problem.d_out)
    run()
    return run, out.detach()


def errors_of(cell: Cell, problem: Problem, out: Tensor) -> Errors:
    if problem.backward:
        return backward_errors(cell.variant, cell.dtype)
    return forward_errors(problem, out)


@cache
def backward_errors(variant: str, dtype: str) -> Errors:
    """Of a smaller problem: of the input whose gradient is worst."""
    problem = make_problem(variant, SMALL, DTYPES[dtype], "bwd")
    found = gradient_errors(problem, by_flexc(problem)())
    return worst(found, DTYPES[dtype])


def row_of(cell: Cell, system: str, taken: Sequence[float]) -> Row:
    """The median, but of the machine's own limits the best."""
    threads = torch.get_num_threads()
    seconds = statistics.median(taken)
    gflops, gbytes = flops_of(cell) / seconds / 1e9, bytes_of(cell) / seconds / 1e9
    if system == PEAK:
        seconds = min(taken)
        gflops, gbytes = fma_burst(threads).work / seconds / 1e9, 0.0
    if system == READ:
        seconds = min(taken)
        gflops, gbytes = 0.0, read_burst(threads).work / seconds / 1e9
    rounded = round(seconds * 1e3, 4), round(gflops, 2), round(gbytes, 2)
    return Row(*cell, system, threads, *rounded)
