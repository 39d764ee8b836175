"""What a call needs besides its inputs and its output, by the growth of the process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from bench.cpu.cells import Cell, problem_of
from bench.cpu.contest import SYSTEMS
from bench.cpu.measure import started

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def growth(cell: Cell, system: str) -> float | None:
    """MB that a system's second run adds at its peak; None where it cannot be known.

    The first run compiles. What a run returns is not counted.
    """
    problem = problem_of(cell)
    forward = SYSTEMS[system](problem)
    if forward is None or not FORGET.exists():
        return None
    torch._dynamo.reset()
    run, _ = started(forward, problem)
    release()
    try:
        FORGET.write_text("5")  # The peak is that from now on.
    except OSError:
        return None
    before = status("VmRSS")
    returned = run()
    results = returned if isinstance(returned, tuple) else (returned,)
    size = sum(r.nbytes for r in results if isinstance(r, torch.Tensor))
    return (status("VmHWM") - before - size) / 1e6


def release() -> None:
    """Give freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def status(name: str) -> int:
    """A size that the system knows of this process, in bytes."""
    lines = STATUS.read_text().splitlines()
    found = next(line for line in lines if line.startswith(f"{name}:"))
    return int(found.split()[1]) * 1024
