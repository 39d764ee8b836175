"""One cell: all systems are run, then take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.errors import agrees
from bench.host.cells import Cell, Problem, problem_of
from bench.host.cpu_kernels import parts_of
from bench.host.results import Row
from bench.host.systems import Call, call_of
from bench.kernel_trace import traced
from bench.timing import interleaved_host_medians, interleaved_loop_medians

TRACED = 5
"""Calls whose kernels are timed."""


@dataclass
class Measured:
    """The outcome of a cell."""

    rows: list[Row] = field(default_factory=list[Row])
    notes: list[str] = field(default_factory=list[str])
    """Why systems were left out."""


def measure(
    cell: Cell, device: str, systems: Sequence[str], *, seconds: float = 1.0
) -> Measured:
    """Let all systems take turns, twice, for about so many seconds each time."""
    measured, problem = Measured(), problem_of(cell, device)
    calls = prepare(problem, systems, measured.notes)
    host = interleaved_host_medians(calls, device, budget=seconds)
    loops = interleaved_loop_medians(calls, device, budget=seconds)
    for name, call in calls.items():
        measured.rows.append(
            Row(
                *(cell.variant, str(cell.shape), cell.mode, cell.kind, name),
                round(1e6 * host[name], 2),
                round(1e6 * loops[name], 2),
                **kernels_of(call, name, device, seconds),
            )
        )
    return measured


def prepare(
    problem: Problem, systems: Sequence[str], notes: list[str]
) -> Mapping[str, Call]:
    """Compile and run every system that can do what is asked for."""
    # What was compiled for other cells would be looked through at each call.
    torch._dynamo.reset()
    calls: dict[str, Call] = {}
    own: Sequence[Tensor] = ()
    for name in systems:
        try:
            call = call_of(problem, name)
            if call is None:
                continue
            found = tensors_of(call())
        except Exception as error:  # the others' limits are part of the result
            reason = (str(error).strip() or "?").splitlines()[0]
            notes.append(f"{name}: {type(error).__name__}: {reason[:160]}")
            continue
        calls[name] = call
        own = found if name == "flexc" else own
        if own and name != "sdpa" and not all(map(agrees, own, found)):
            notes.append(f"{name}: computes something else than flexc")
    return calls


def tensors_of(result: object) -> tuple[Tensor, ...]:
    """An output or gradients, to keep."""
    found = result if isinstance(result, tuple) else (result,)
    return tuple(t.detach().clone() for t in found if isinstance(t, Tensor))


def kernels_of(call: Call, system: str, device: str, seconds: float) -> dict[str, Any]:
    """What is known of the kernels of a call: a row's part."""
    if device == "cuda":
        found = traced(call, TRACED)
        own = sum(kernel.taken for kernel in found if kernel.computes)
        every = sum(kernel.taken for kernel in found)
        return {
            "kernels": round(own / TRACED, 2),
            "device": round(every / TRACED, 2),
            "launches": round(len(found) / TRACED),
        }
    if not system.startswith("flexc"):
        return {}
    parts = parts_of(call, budget=seconds)
    return {
        "kernels": round(1e6 * parts.kernels, 2),
        "rest": round(1e6 * parts.rest, 2),
        "launches": parts.launches,
    }
