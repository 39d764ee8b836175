"""Schedules: how the warps of a GPU's kernel share its work, and which a call gets.

Schedules are tried in order of preference. One is left for the next where its passes
cannot write it (`ScheduleError`), or where what the compiler made of it is not good:
registers that spilled, products that it serialised. Why, the kernel's spec says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from math import gcd
from typing import Literal

import torch

from flexc.codegen.gluon.compiled_check import MOST_SPILLED, spilled_by
from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import CompilationError, FlexcError, OptionError, ScheduleError
from flexc.passes.sizes.hopper_sizes import (
    MOST_OVERLAPPING,
    PART_ROWS,
    PART_WARPS,
    WIDEST,
)
from flexc.passes.sizes.tile_sizes import MOST_STEPS
from flexc.runtime.inputs.options import (
    SCHEDULE,
    TILE_OPTIONS,
    TileOptions,
    is_interpreting,
)
from flexc.runtime.inputs.tensor_facts import ALIGNMENT
from flexc.runtime.kernels.build import Build
from flexc.runtime.tapes.gpus import HOPPER

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
    smaller: int = 0
    """By how many steps its tiles are smaller than the best."""

    @property
    def label(self) -> str:
        """Its name, and what else tells it from the other candidates."""
        if self.smaller:
            return f"{self.name} in smaller tiles ({self.smaller})"
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
"""Two groups of warps have 240 registers for each thread, three have 160; where many
programs share a multiprocessor, each has as few as 104."""

DTYPES = (torch.bfloat16, torch.float16)
"""Of whose products asynchronous ones are made."""


@dataclass(frozen=True)
class Candidates:
    """The schedules to try, in order, and why others are not tried."""

    schedules: tuple[Schedule, ...]
    """A name may be there twice, with fewer rows if registers do not suffice."""
    rejected: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    """Why others are slower than the first, and only tried if that cannot be had."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(s.name for s in self.schedules))

    def labelled(self, label: str) -> Schedule | None:
        """The one of a label."""
        every = (*self.schedules, *smaller_tiles(TRITON))
        return next((s for s in every if s.label == label), None)


Crowd = Callable[[], int]
"""How many programs would share a multiprocessor if products do not overlap."""


def candidates(build: Build, crowd: Crowd = lambda: 1) -> Candidates:
    """The schedules that a build of the Triton backend may have."""
    obstacle, asked = obstacle_to_roles(build), build.tiles.schedule
    if asked is None:
        if obstacle is None:
            return by_preference(fewer_rows(build), crowd())
        names = ", ".join(s.name for s in WITH_ROLES)
        return Candidates((TRITON,), (f"{names}: {obstacle}",))
    schedule = SCHEDULES[asked]
    if schedule.has_roles and obstacle is not None:
        raise cannot_be_had(asked, obstacle)
    return Candidates((schedule,))


def by_preference(fewer: int | None, crowd: int) -> Candidates:
    """All schedules, those with roles with fewer rows too if registers spill.

    Where a crowd of programs is best, there are no registers for overlap in each.
    """
    found: list[Schedule] = []
    for schedule in SCHEDULES.values():
        found.append(schedule)
        if schedule.has_roles and fewer is not None:
            found.append(replace(schedule, rows=fewer))
    if crowd <= MOST_OVERLAPPING:
        return Candidates(tuple(found))
    why = (
        f"{crowd} programs without it share a multiprocessor and run beside each "
        f"other, which is faster than {MOST_OVERLAPPING} with it"
    )
    first = (SIMPLE, *(s for s in found if s != SIMPLE))
    return Candidates(first, slower=(f"{OVERLAP.name}: {why}",))


def fewer_rows(build: Build) -> int | None:
    """As many rows as leave a thread most registers.

    None if the user chose how many, or if programs have no more than that.
    """
    block = build.call.sparse_block
    rows = FEWER_ROWS if block is None else gcd(FEWER_ROWS, block[0])
    if build.tiles.block_m or rows % PART_ROWS:
        return None
    return rows if build.program_rows is None or build.program_rows > rows else None


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


def smaller_tiles(schedule: Schedule) -> Iterator[Schedule]:
    """A schedule in tiles that need less and less shared memory."""
    return (replace(schedule, smaller=n) for n in range(1, MOST_STEPS + 1))


Lower = Callable[[Schedule], KernelSpec]
Check = Callable[[KernelSpec], Sequence[str]]
"""What is wrong with the compiled kernel of a spec."""

HOPELESS = 4 * MOST_SPILLED
"""Bytes that spill where another schedule of as many rows does not help.

Of the kernels of 125 random mods, the second that was tried of a pair never spilled
less than 0.38 times what the first did.
"""

HOPELESS_OF_FEWER_ROWS = 8 * MOST_SPILLED
"""Bytes that spill where no schedule with roles helps: in those kernels fewer rows,
which leave a thread half as many registers again, saved 1700 at most."""

HOPELESS_IN_A_CROWD = 2 * MOST_SPILLED
"""Bytes that spill of one of many programs of a multiprocessor where no schedule with
roles helps.

Of the kernels of the corpus three spilled so, 716 bytes and more; with products that
overlap, and registers for that, they spilled 1380 and more.
"""


@dataclass
class Trials:
    """What was tried and left, and what that says of candidates not yet tried.

    To compile a kernel takes seconds, and ten or more where it spills much.
    """

    rejected: list[str]
    crowded: bool = False
    """The first candidate has programs that share a multiprocessor."""
    digests: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])
    """Names of schedules that no number of rows makes possible."""
    spilled: dict[int | None, int] = field(default_factory=dict[int | None, int])
    """The most bytes that a candidate spilled, by its rows."""
    needs_fewer: bool = False
    """One with fewer rows did not compile well; another is tried with those only."""

    def reject(self, schedule: Schedule, why: Sequence[str]) -> None:
        self.rejected.append(f"{schedule.label}: {'; '.join(why)}")
        most = max(map(spilled_by, why), default=0)
        self.spilled[schedule.rows] = max(most, self.spilled.get(schedule.rows, 0))
        self.needs_fewer |= schedule.rows is not None

    def repeat(self, schedule: Schedule) -> None:
        """Its kernel was tried before: fewer rows are as many as those are."""
        self.refused.add(schedule.name)
        self.spilled[schedule.rows] = max(self.spilled.values(), default=0)

    def is_hopeless(self, schedule: Schedule) -> bool:
        """Whether a schedule with roles would be compiled in vain."""
        most = HOPELESS_IN_A_CROWD if self.crowded else HOPELESS_OF_FEWER_ROWS
        return (
            schedule.name in self.refused
            or (self.needs_fewer and schedule.rows is None)
            or self.spilled.get(schedule.rows, 0) > HOPELESS
            or max(self.spilled.values(), default=0) > most
        )


def choose(
    build: Build, lower: Lower, check: Check, crowd: Crowd = lambda: 1
) -> KernelSpec:
    """The kernel of the first schedule that can be had and that compiles well.

    One that was asked for need not compile well: what is wrong with it is noted.
    """
    found, asked = candidates(build, crowd), build.tiles.schedule
    trials = Trials(list(found.rejected), bool(found.slower))
    for schedule in found.schedules:
        if not schedule.has_roles:
            return choose_tiles(build, schedule, lower, check, trials)
        if trials.is_hopeless(schedule):
            continue
        try:
            spec, why = attempt(schedule, lower, check, trials)
        except (ScheduleError, CompilationError) as error:
            if asked is not None:
                raise cannot_be_had(asked, str(error)) from error
            trials.rejected.append(f"{schedule.label}: {error}")
            trials.refused.add(schedule.name)  # Fewer rows make no difference.
            continue
        if spec is None:
            trials.repeat(schedule)
            continue
        if why:
            trials.reject(schedule, why)
        if asked is not None or not why:
            is_first = schedule is found.schedules[0]
            rejected = [*trials.rejected, *found.slower * is_first]
            return chosen(spec, schedule, rejected)
    raise AssertionError("Triton's schedule serves every kernel")


def choose_tiles(
    build: Build, schedule: Schedule, lower: Lower, check: Check, trials: Trials
) -> KernelSpec:
    """The kernel of a schedule in the largest tiles that fit shared memory."""
    why: Sequence[str] = ()

    def tried(spec: KernelSpec) -> Sequence[str]:
        return copied_too_much(spec, build) or check(spec)

    for smaller in (schedule, *smaller_tiles(schedule)):
        spec, found = attempt(smaller, lower, tried, trials)
        if spec is not None and not found:
            return chosen(spec, smaller, trials.rejected)
        if spec is not None:
            trials.reject(smaller, why := found)
    raise too_large(build.tiles, "; ".join(why))


def copied_too_much(spec: KernelSpec, build: Build) -> list[str]:
    """Why a program cannot fit shared memory, of one that need not be compiled then.

    With one stage nothing is copied ahead, so this leaves some tiles to be tried.
    """
    needed, there = spec.copied_ahead, build.shared_memory
    if needed <= there or build.tiles.num_stages is not None:
        return []
    return [f"copies {needed} bytes to shared memory ahead, and {there} are there"]


def too_large(tiles: TileOptions, why: str) -> FlexcError:
    """No tile fits that may be chosen beside those that a user chose."""
    given = {option: getattr(tiles, name) for option, name in TILE_OPTIONS.items()}
    told = ", ".join(f"{k}={v}" for k, v in given.items() if v and k != "num_warps")
    if not told:
        return CompilationError(f"the smallest tiles do not fit a GPU: a program {why}")
    return OptionError(
        f"a program of kernel options {told} {why}; choose smaller numbers, or leave "
        "them out for tiles that fit"
    )


def attempt(
    schedule: Schedule, lower: Lower, check: Check, trials: Trials
) -> tuple[KernelSpec | None, Sequence[str]]:
    """The kernel of a schedule, if there is one that was not tried, and its faults."""
    spec = lower(schedule)
    if spec.digest in trials.digests:
        return None, ()
    trials.digests.add(spec.digest)
    return spec, check(spec)


def chosen(spec: KernelSpec, schedule: Schedule, rejected: Sequence[str]) -> KernelSpec:
    """A spec that says how it was chosen, as the log does."""
    for reason in rejected:
        log.info("%s: not %s", spec.entry, reason)
    log.info("%s: schedule %s", spec.entry, schedule.label)
    return replace(spec, schedule=schedule.label, rejected=tuple(rejected))
