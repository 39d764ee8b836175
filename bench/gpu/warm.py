"""Compiles what cells need, in processes of their own, into the caches on disk.

A contestant takes seconds to compile and milliseconds to measure, and compilers use one
core each. Nothing that is timed here counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from bench.gpu.cells import Cell
from bench.gpu.checks import backward_errors
from bench.gpu.problem import Setup, problem_of


def warm_up(
    cells: Sequence[Cell],
    setup: Setup,
    systems: Sequence[str],
    jobs: int,
    timeout: float | None,
    *,
    check: bool,
) -> float:
    """Run every cell and its check once, in about the given order: seconds taken.

    What is not done when time is out is left for the benchmark to compile.
    """
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    jobs = min(jobs, len(cells))
    shares = [tuple(cells[i::jobs]) for i in range(jobs)]
    processes = [
        context.Process(target=run_share, args=(share, setup, tuple(systems), check))
        for share in shares
    ]
    with no_more_processes():
        for process in processes:
            process.start()
    for process in processes:
        left = timeout and max(0.0, start + timeout - time.perf_counter())
        process.join(left)
        if process.is_alive():
            process.kill()
    return time.perf_counter() - start


def run_share(
    cells: Sequence[Cell], setup: Setup, systems: Sequence[str], check: bool
) -> None:
    """What goes wrong is told by the benchmark itself."""
    from bench.gpu.measure import prepare

    for cell in cells:
        prepare(problem_of(cell, setup), systems)
        if check and cell.direction == "bwd":
            with suppress(Exception):
                backward_errors(cell.variant, cell.head_dim, setup)


@contextmanager
def no_more_processes() -> Iterator[None]:
    """Each process would start as many compilers of its own; they inherit this."""
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
