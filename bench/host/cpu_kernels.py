"""The time of a CPU's kernels within calls: what their functions take by ctypes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bench.timing import seconds_of, turns
from flexc.runtime.kernels.cpp_loader import CppFunction

Call = Callable[[], object]


class Watched:
    """A kernel's function that notes the seconds which it takes."""

    def __init__(self, function: Any, seconds: list[float]):
        self.function, self.seconds = function, seconds

    def __call__(self, *values: Any) -> None:
        start = time.perf_counter()
        self.function(*values)
        self.seconds.append(time.perf_counter() - start)


@contextmanager
def watching(seconds: list[float]) -> Iterator[None]:
    """Note what each kernel takes that is loaded by now."""
    loaded = [found for found in gc.get_objects() if type(found) is CppFunction]
    functions = [found.launch for found in loaded]
    for found, function in zip(loaded, functions, strict=True):
        object.__setattr__(found, "launch", Watched(function, seconds))
    try:
        yield
    finally:
        for found, function in zip(loaded, functions, strict=True):
            object.__setattr__(found, "launch", function)


class Parts(NamedTuple):
    """Seconds of a call, medians of many."""

    kernels: float
    rest: float
    """What is not the kernels; noting their times takes some 0.3 us of it for each."""
    launches: int


def parts_of(call: Call, calls: int = 300, budget: float = 0.5) -> Parts:
    """Of a call that ran before, all of whose kernels are loaded.

    Of fewer calls, but of five, where `budget` seconds are spent.
    """
    kernels: list[float] = []
    rest: list[float] = []
    seconds: list[float] = []
    with watching(seconds):
        for _ in turns({"": call}, calls, budget):
            seconds.clear()
            taken = seconds_of(call)
            kernels.append(sum(seconds))
            rest.append(taken - kernels[-1])
    return Parts(statistics.median(kernels), statistics.median(rest), len(seconds))
