"""Compiles what cells need, in processes of their own, into the caches on disk.

A contestant takes seconds to compile and milliseconds to measure, and compilers use one
core each. Nothing that is timed here counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager

from bench.gpu.cells import Cell
from bench.gpu.problem import Problem, Setup


def warm_up(
    cells: Sequence[Cell],
    setup: Setup,
    systems: Sequence[str],
    jobs: int,
    timeout: float | None,
) -> float:
    """Run every cell once, in the given order; the seconds that it took.

    What is not begun when time is out is left for the benchmark to compile.
    """
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with (
        no_more_processes(),
        ProcessPoolExecutor(min(jobs, len(cells)), context) as pool,
    ):
        begun = [pool.submit(run_once, cell, setup, tuple(systems)) for cell in cells]
        wait(begun, timeout)
        pool.shutdown(wait=True, cancel_futures=True)
    return time.perf_counter() - start


def run_once(cell: Cell, setup: Setup, systems: Sequence[str]) -> None:
    """What goes wrong is told by the benchmark itself."""
    from bench.gpu.measure import prepare

    prepare(Problem.of(cell, setup), systems)


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
