"""The machine's own limits: bursts of fused multiply-adds, and of reads.

They run with the vectors that kernels are built for, so `FLEXC_MACHINE` narrows both.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

# First, so that bursts run on torch's threads.
import torch

from bench.timing import seconds_of
from flexc.runtime.kernels.cpp_compiler import SHARED_LEVEL, find_compiler

SOURCE = Path(__file__).with_name("peak.cpp")
BURST = 0.02
"""Seconds, about."""
READ = 1 << 28
"""Bytes, more than caches hold."""


@cache
def library() -> Any:
    """Both functions, compiled as kernels are."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "peak.so"
        find_compiler().build(SOURCE, output=output, level=SHARED_LEVEL)
        loaded = ctypes.CDLL(str(output))
    loaded.fma_burst.argtypes = [ctypes.c_long, ctypes.c_int]
    loaded.fma_burst.restype = ctypes.c_double
    loaded.read_burst.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
    loaded.read_burst.restype = ctypes.c_double
    return loaded


@dataclass(frozen=True)
class Burst:
    """What is run, and how much it does: floating point operations, or bytes."""

    run: Callable[[], object]
    work: float


@cache
def fma_burst(threads: int) -> Burst:
    """Fused multiply-adds of fp32 for about `BURST` seconds."""
    function, steps = library().fma_burst, 1 << 14
    while seconds_of(partial(function, steps, threads)) < BURST / 2:
        steps *= 2
    run = partial(function, steps, threads)
    return Burst(run, run() * threads)


@cache
def read_burst(threads: int) -> Burst:
    data = torch.zeros(READ // 4)
    function = library().read_burst
    return Burst(lambda: function(data.data_ptr(), data.numel(), threads), READ)
