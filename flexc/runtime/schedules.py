"""Schedules: how the warps of a GPU's kernel share its work, and which a call gets.

Schedules are tried in order of preference. One is left for the next where its passes
cannot write it (`ScheduleError`), or where what the compiler made of it is not good:
registers that spilled, products that it serialised. Why, the kernel's spec says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import gcd
from typing import Literal

import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import CompilationError, ScheduleError
from flexc.passes.hopper_sizes import PART_ROWS, PART_WARPS, WIDEST
from flexc.runtime.build import HOPPER, Build
from flexc.runtime.options import SCHEDULE, is_interpreting
from flexc.runtime.tensor_facts import ALIGNMENT

log = logging.getLogger("flexc")


@dataclass(frozen=True)
class Schedule:
    """One way to share a kernel's work among its warps."""

    name: str
    target: Literal["triton", "gluon"]
    about: str
    overlap: bool = False
    """Products run while the softmax of another block is computed."""
    rows: int | None = None
    """Rows of a program; None for as many as are best where registers suffice."""

    @property
    def label(self) -> str:
        """Its name, and what else tells it from the other candidates."""
        return self.name if self.rows is None else f"{self.name} of {self.rows} rows"

    @property
    def has_roles(self) -> bool:
        """Whether warps have code of their own, which only Gluon can say."""
        return self.target == "gluon"


OVERLAP = Schedule(
    "overlap",
    "gluon",
    "some warps copy, others compute; products overlap with softmax",
    overlap=True,
)
SIMPLE = Schedule(
    "simple", "gluon", "some warps copy, others compute one block after another"
)
TRITON = Schedule(
    "triton", "triton", "all warps run the same code, which Triton orders"
)

SCHEDULES = {s.name: s for s in (OVERLAP, SIMPLE, TRITON)}
"""By name, the preferred ones first."""

WITH_ROLES = tuple(s for s in SCHEDULES.values() if s.has_roles)

FEWER_ROWS = 2 * PART_ROWS
"""Two groups of warps have 240 registers for each thread, three have 160, and so have
those of several programs on a multiprocessor."""

DTYPES = (torch.bfloat16, torch.float16)
"""Of whose products asynchronous ones are made."""


@dataclass(frozen=True)
class Candidates:
    """The schedules to try, in order, and why others are not tried."""

    schedules: tuple[Schedule, ...]
    rejected: tuple[str, ...] = ()
    fewer_rows: int | None = None
    """Rows of a program with roles, if those that are chosen leave few registers."""

    def labelled(self, label: str) -> Schedule | None:
        """The one of a label."""
        fewer = (replace(s, rows=self.fewer_rows) for s in self.schedules)
        return next((s for s in (*self.schedules, *fewer) if s.label == label), None)


def candidates(build: Build) -> Candidates:
    """The schedules that a build of the Triton backend may have."""
    obstacle, asked = obstacle_to_roles(build), build.tiles.schedule
    if asked is None:
        if obstacle is None:
            schedules = tuple(SCHEDULES.values())
            return Candidates(schedules, fewer_rows=fewer_rows(build))
        names = ", ".join(s.name for s in WITH_ROLES)
        return Candidates((TRITON,), (f"{names}: {obstacle}",))
    schedule = SCHEDULES[asked]
    if schedule.has_roles and obstacle is not None:
        raise cannot_be_had(asked, obstacle)
    return Candidates((schedule,))


def fewer_rows(build: Build) -> int | None:
    """As many rows as leave a thread most registers; None if the user chose."""
    block = build.call.sparse_block
    rows = FEWER_ROWS if block is None else gcd(FEWER_ROWS, block[0])
    return None if build.tiles.block_m or rows % PART_ROWS else rows


def preferred(build: Build) -> Schedule:
    """The schedule that is tried first."""
    return candidates(build).schedules[0]


def obstacle_to_roles(build: Build) -> str | None:
    """Why the kernels of a build cannot have roles; None if they may."""
    call, tiles = build.call, build.tiles
    if is_interpreting():
        return "TRITON_INTERPRET=1 runs Triton's kernels only"
    if build.capability != HOPPER or torch.version.hip:
        return f"needs an NVIDIA GPU of capability 9.0, not {gpu_of(build)}"
    if not has_gluon():
        return "this triton has no Gluon"
    if build.derivative:
        return "derivatives have no such kernels yet"
    if call.dtype not in DTYPES:
        return f"needs inputs of 16 bits, not {str(call.dtype).removeprefix('torch.')}"
    if max(call.head_dim, call.value_dim) > WIDEST:
        return f"needs head dims up to {WIDEST}"
    if call.alignment is None or call.alignment < ALIGNMENT:
        return (
            f"needs rows of query, key, value and output that start at multiples of "
            f"{ALIGNMENT} bytes, of adjacent elements"
        )
    if tiles.num_warps not in (None, PART_WARPS):
        return f"has {PART_WARPS} warps in each group, not num_warps={tiles.num_warps}"
    return None


def gpu_of(build: Build) -> str:
    if torch.version.hip:
        return "one of AMD's"
    if build.capability is None:
        return "an unknown one"
    return f"one of {build.capability // 10}.{build.capability % 10}"


@cache
def has_gluon() -> bool:
    """Whether the installed Triton can be told about roles."""
    try:
        return find_spec("triton.experimental.gluon") is not None
    except ModuleNotFoundError:
        return False


def cannot_be_had(name: str, why: str) -> ScheduleError:
    return ScheduleError(
        f'kernel option {SCHEDULE}="{name}" cannot be had here: {why}; leave it out '
        "for the best schedule that can"
    )


Lower = Callable[[Schedule], KernelSpec]
Check = Callable[[KernelSpec], Sequence[str]]
"""What is wrong with the compiled kernel of a spec."""


def choose(build: Build, lower: Lower, check: Check) -> KernelSpec:
    """The kernel of the first schedule that can be had and that compiles well.

    One that was asked for need not compile well: what is wrong with it is noted.
    """
    found, asked = candidates(build), build.tiles.schedule
    rejected, tried = list(found.rejected), set[str]()
    fewer: int | None = None
    for schedule in found.schedules:
        if not schedule.has_roles:
            return chosen(lower(schedule), schedule, rejected)
        for rows in dict.fromkeys((fewer, found.fewer_rows)):
            variant = replace(schedule, rows=rows)
            spec, why = attempt(variant, lower, check, tried)
            if spec is None and asked is not None:
                raise cannot_be_had(asked, why)
            if why:
                rejected.append(f"{variant.label}: {why}")
            if spec is None:
                break  # Fewer rows make no difference.
            if asked is not None or not why:
                return chosen(spec, variant, rejected)
            fewer = rows
    raise AssertionError("Triton's schedule serves every kernel")


def attempt(
    schedule: Schedule, lower: Lower, check: Check, tried: set[str]
) -> tuple[KernelSpec | None, str]:
    """The kernel of a schedule, if there is one that was not tried, and its faults."""
    try:
        spec = lower(schedule)
        if spec.digest in tried:
            return None, ""
        tried.add(spec.digest)
        return spec, "; ".join(check(spec))
    except (ScheduleError, CompilationError) as error:
        return None, str(error)


def chosen(spec: KernelSpec, schedule: Schedule, rejected: Sequence[str]) -> KernelSpec:
    """A spec that says how it was chosen, as the log does."""
    for reason in rejected:
        log.info("%s: not %s", spec.entry, reason)
    log.info("%s: schedule %s", spec.entry, schedule.label)
    return replace(spec, schedule=schedule.label, rejected=tuple(rejected))
