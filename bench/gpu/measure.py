"""One cell: all systems are run once, checked, and then take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from bench.errors import Errors, agrees, forward_errors
from bench.gpu.cells import Cell
from bench.gpu.checks import backward_errors
from bench.gpu.problem import Setup, problem_of
from bench.gpu.results import Row
from bench.gpu.systems import MATMUL, SYSTEMS, Contest
from bench.problem import Problem, gradients
from bench.timing import interleaved_gpu_medians, interleaved_loop_medians
from tests.support.kernel_counts import counting
from tests.support.reference import visible_pairs

MATMUL_SIZE = {"cuda": 8192, "cpu": 64}

EARLIER = 2
"""Training steps before the one whose backward is timed: a process's first calls are no
repeated ones, and flexc replays no gradients of theirs."""

FEW_WORDS = 120
"""Characters of the reason why a system was left out."""

Run = Callable[[], object]


@dataclass
class Measured:
    """The outcome of a cell."""

    cell: Cell
    rows: list[Row] = field(default_factory=list[Row])
    errors: Errors | None = None
    """flexc's; None if it was not checked."""
    notes: list[str] = field(default_factory=list[str])
    """Why systems were left out."""
    kernels: str = ""
    """What served flexc."""
    failed: bool = False
    """flexc has no result, or a wrong one."""


@dataclass
class Prepared:
    """Contestants that ran once."""

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    outs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    notes: list[str] = field(default_factory=list[str])
    served: Counter[str] = field(default_factory=Counter[str])


def prepare(problem: Problem, systems: Sequence[str]) -> Prepared:
    """Compile and run every system that knows the problem."""
    torch._dynamo.reset()
    found = Prepared()
    for name in systems:
        if name == MATMUL:
            continue
        try:
            contest = SYSTEMS[name](problem)
            if contest is None:
                continue
            with counting(found.served if name == "flexc" else Counter()):
                found.runs[name], out = started(contest, problem.backward)
            found.outs[name] = contest.standard(out.detach())
        except Exception as error:  # the others' limits are part of the result
            reason = (str(error).strip() or "?").splitlines()[0]
            found.notes.append(f"{name}: {type(error).__name__}: {reason[:FEW_WORDS]}")
    return found


def started(contest: Contest, backward: bool) -> tuple[Run, Tensor]:
    """What is timed, after it ran, and the output."""
    if not backward:
        return contest.forward, contest.forward()
    # Else torch drops what a second backward would need.
    with functorch_config.patch(donated_buffer=False):
        for _ in range(EARLIER):
            gradients(contest.forward(), contest.inputs, contest.d_out)
        out = contest.forward()
        gradients(out, contest.inputs, contest.d_out)
    return lambda: gradients(out, contest.inputs, contest.d_out), out


def measure(
    cell: Cell,
    setup: Setup,
    systems: Sequence[str],
    *,
    rounds: int = 40,
    seconds: float = 1.5,
    check: bool = True,
    paused: bool = False,
) -> Measured:
    """Check a cell and let all systems take turns, for about so many seconds.

    A turn is some calls back to back, or a single one after a pause, with a cold cache.
    """
    measured = Measured(cell)
    problem = problem_of(cell, setup)
    prepared = prepare(problem, systems)
    measured.notes = prepared.notes
    told = [name for name in prepared.served if not name.startswith("not ")]
    measured.kernels = ", ".join(told)
    measured.notes += [f"flexc: {n}" for n in prepared.served if n not in told]
    if "flexc" in systems:
        examine(measured, problem, prepared, setup, check=check)
    runs = dict(prepared.runs)
    if MATMUL in systems:
        runs[MATMUL] = matmul(setup.device)
    if paused:
        medians = interleaved_gpu_medians(runs, rounds, budget=seconds)
    else:
        medians = interleaved_loop_medians(runs, setup.device, rounds, seconds)
    measured.rows = [
        row_of(cell, name, taken, flops_of(cell, name, setup))
        for name, taken in medians.items()
    ]
    return measured


def examine(
    measured: Measured,
    problem: Problem,
    prepared: Prepared,
    setup: Setup,
    *,
    check: bool,
) -> None:
    """Hold flexc to dense attention, and the others to flexc."""
    out = prepared.outs.get("flexc")
    if out is None:
        measured.failed = True
        return
    if check:
        cell = measured.cell
        measured.errors = (
            backward_errors(cell.variant, cell.head_dim, setup)
            if problem.backward
            else forward_errors(problem, out)
        )
        measured.failed = not measured.errors.right
    for name, other in prepared.outs.items():
        if name != "flexc-without-mod" and not agrees(out, other):
            measured.notes.append(f"{name}: computes something else than flexc")
    prepared.outs.clear()


def row_of(cell: Cell, system: str, seconds: float, flops: float) -> Row:
    ms, tflops = round(seconds * 1e3, 5), round(flops / seconds / 1e12, 2)
    return Row(*cell, system=system, ms=ms, tflops=tflops)


@cache
def matmul(device: str) -> Run:
    """A product of two square matrices of bf16."""
    shape = (MATMUL_SIZE[device],) * 2
    a, b = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def flops_of(cell: Cell, system: str, setup: Setup) -> float:
    """Of unmasked pairs: two products, and five of a backward."""
    if system == MATMUL:
        return 2.0 * MATMUL_SIZE[setup.device] ** 3
    heads = setup.heads_of(cell.head_dim)
    pairs = pairs_of(cell.variant, cell.seq, setup)
    forward = 4.0 * setup.batch * heads * cell.head_dim * pairs
    return forward * (2.5 if cell.direction == "bwd" else 1)


@cache
def pairs_of(variant: str, seq: int, setup: Setup) -> int:
    """Unmasked ones of a head; no mask of the benchmark looks at the head."""
    small = Setup(setup.dtype, setup.device, batch=1, heads=1)
    problem = problem_of(Cell(variant, 8, seq, "fwd"), small)
    return visible_pairs(problem.mods[1], 0, *problem.lengths, setup.device)
