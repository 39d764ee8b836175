"""Schedules of GPU kernels, and the choice of a schedule for a call.

A schedule says how the warps of a program share the work. flexc tries schedules in
order of preference. flexc rejects a schedule if its passes cannot write the kernel
(`ScheduleError`), or if the compiled kernel is slow because registers spill or products
are serialised. The kernel's spec records the reasons.
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

from flexc.codegen.gluon.ptxas import SPILL_LIMIT, spilled_by
from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import CompilationError, FlexcError, OptionError, ScheduleError
from flexc.passes.targets import target_named
from flexc.passes.targets.gluon import (
    MOST_OVERLAPPING,
    NARROW,
    PART_ROWS,
    PART_WARPS,
    WIDEST,
)
from flexc.passes.targets.triton import MOST_STEPS
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
    """True if products run while the softmax of another block is computed."""
    rows: int | None = None
    """The rows of a program.

    None for the number that is best if there are enough registers.
    """
    smaller: int = 0
    """The number of steps by which tiles are smaller than the best tiles."""
    recomputes: bool = False
    """True if iterations compute addresses anew, which takes fewer registers."""
    most_spilled: int = SPILL_LIMIT
    """The bytes that a thread may spill before the kernel counts as slow."""
    spilled_before: int | None = 4 * SPILL_LIMIT
    """The bytes that an earlier candidate with equal rows may spill.

    If one spilled more, this schedule is not tried. None for any number.
    """

    @property
    def label(self) -> str:
        """The name, with the details that tell the schedule from other candidates."""
        if self.smaller:
            return f"{self.name} in smaller tiles ({self.smaller})"
        if self.recomputes:
            return f"{self.name} that recomputes addresses"
        return self.name if self.rows is None else f"{self.name} of {self.rows} rows"

    @property
    def has_roles(self) -> bool:
        """True if warps have separate code, which only Gluon can express."""
        return target_named(self.target).one_loop


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
"""All schedules by name, the preferred schedules first."""


def first_of(target: str) -> Schedule:
    """Return the preferred schedule of a target, Triton's for one without schedules."""
    return next((s for s in SCHEDULES.values() if s.target == target), TRITON)


WITH_ROLES = tuple(s for s in SCHEDULES.values() if s.has_roles)

FEWER_ROWS = 2 * PART_ROWS
"""The smaller number of rows of a program, for two groups of warps.

With two groups, each thread has more registers than with three groups or with many
programs on a multiprocessor.
"""

OF_DERIVATIVES = (
    replace(OVERLAP, most_spilled=160),
    replace(OVERLAP, recomputes=True, spilled_before=None),
    replace(SIMPLE, spilled_before=None),
)
"""The schedules with roles of sums over pairs, in order of preference.

Without overlap, few bytes may spill where many do with it.

To recompute addresses costs 5 to 10 % where nothing spills, and gains 3 to 28 % where
more than 160 bytes do (docs/measurements/2026-11-24-h200-backward.md).
"""

DTYPES = (torch.bfloat16, torch.float16)
"""The dtypes for which asynchronous products exist."""


@dataclass(frozen=True)
class Candidates:
    """The schedules to try, in order, and the reasons against the others."""

    schedules: tuple[Schedule, ...]
    """The schedules to try; a schedule may appear again with fewer rows."""
    rejected: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    """The reasons why schedules are slower than the first schedule.

    These schedules are tried only if the first schedule fails.
    """

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(s.name for s in self.schedules))

    def labelled(self, label: str) -> Schedule | None:
        """Return the schedule with a label, or None."""
        every = (*self.schedules, *smaller_tiles(TRITON))
        return next((s for s in every if s.label == label), None)


Residents = Callable[[], int]
"""A function that returns how many programs share a multiprocessor in `SIMPLE`."""


def candidates(build: Build, residents: Residents = lambda: 1) -> Candidates:
    """Return the schedules that a build of the Triton backend may have.

    Raise ScheduleError if the user asked for a schedule that is impossible.
    """
    obstacle, asked = obstacle_to_roles(build), build.tiles.schedule
    if build.roles == "must":
        return Candidates(OF_DERIVATIVES)
    if asked is None:
        if obstacle is None and build.derivative:
            return Candidates((*OF_DERIVATIVES, TRITON))
        if obstacle is None:
            return by_preference(fewer_rows(build), residents())
        names = ", ".join(s.name for s in WITH_ROLES)
        return Candidates((TRITON,), (f"{names}: {obstacle}",))
    schedule = SCHEDULES[asked]
    if schedule.has_roles and obstacle is not None:
        raise cannot_be_had(asked, obstacle)
    return Candidates((schedule,))


def by_preference(fewer: int | None, residents: int) -> Candidates:
    """Return all schedules in order; those with roles also with fewer rows, if given.

    If many programs share a multiprocessor, a program has too few registers for
    overlap. The simple schedule then comes first.
    """
    found: list[Schedule] = []
    for schedule in SCHEDULES.values():
        found.append(schedule)
        if schedule.has_roles and fewer is not None:
            found.append(replace(schedule, rows=fewer))
    if residents <= MOST_OVERLAPPING:
        return Candidates(tuple(found))
    why = (
        f"{residents} programs without it share a multiprocessor and run beside each "
        f"other, which is faster than {MOST_OVERLAPPING} with it"
    )
    first = (SIMPLE, *(s for s in found if s != SIMPLE))
    return Candidates(first, slower=(f"{OVERLAP.name}: {why}",))


def fewer_rows(build: Build) -> int | None:
    """Return the number of rows that leaves each thread the most registers.

    Return None if the user chose the rows, or if programs have no more rows anyway.
    """
    block = build.call.sparse_block
    rows = FEWER_ROWS if block is None else gcd(FEWER_ROWS, block[0])
    if build.tiles.block_m or rows % PART_ROWS:
        return None
    return rows if build.program_rows is None or build.program_rows > rows else None


def preferred(build: Build) -> Schedule:
    """Return the schedule that is tried first."""
    return candidates(build).schedules[0]


def obstacle_to_roles(build: Build) -> str | None:
    """Return why the kernels of a build cannot have roles, or None if they can."""
    call, tiles = build.call, build.tiles
    if is_interpreting():
        return "TRITON_INTERPRET=1 runs Triton's kernels only"
    if build.capability != HOPPER or torch.version.hip:
        return f"needs an NVIDIA GPU of capability 9.0, not {gpu_of(build)}"
    if not has_gluon():
        return "this triton has no Gluon"
    if call.few_rows is not None:
        return "programs of few rows wait for keys, not for products"
    if build.roles == "cannot":
        return "these sums of a derivative have none"
    if build.derivative and build.roles == "may" and call.widest <= NARROW:
        return f"two kernels of Triton are faster for head dims up to {NARROW}"
    if call.dtype not in DTYPES:
        return f"needs inputs of 16 bits, not {str(call.dtype).removeprefix('torch.')}"
    if any(call.stored[:2]):
        return "needs keys and values of 16 bits, as queries have"
    if call.stored.scales():
        return "does not apply scales to keys and values"
    if call.widest > WIDEST:
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
    """Return True if the installed Triton has Gluon, which can express roles."""
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
    """Yield a schedule with tiles that need less and less shared memory."""
    return (replace(schedule, smaller=n) for n in range(1, MOST_STEPS + 1))


Lower = Callable[[Schedule], KernelSpec]
Check = Callable[[KernelSpec, int], Sequence[str]]
"""A function that compiles the kernel of a spec and returns its problems.

Its second argument is the number of bytes that a thread may spill.
"""

MAX_SPILLED = 8 * SPILL_LIMIT
"""The spilled bytes above which no other schedule with roles is tried.

Fewer rows leave a thread more registers, but do not save this much.
"""

MAX_SPILLED_SHARED = 2 * SPILL_LIMIT
"""The limit in place of `MAX_SPILLED` if programs share a multiprocessor.

Schedules with overlap need more registers and spill even more.
"""


@dataclass
class Trials:
    """The rejected schedules, and their consequences for candidates not yet tried.

    Compiling a kernel takes seconds, and longer if many registers spill.
    """

    rejected: list[str]
    has_residents: bool = False
    """True if the programs of the first candidate share a multiprocessor."""
    digests: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])
    """The names of schedules that fail for every number of rows."""
    spilled: dict[int | None, int] = field(default_factory=dict[int | None, int])
    """The most bytes that a candidate spilled, by its rows."""
    needs_fewer: bool = False
    """True if a candidate with fewer rows was rejected; others then need fewer rows
    too.
    """

    def reject(self, schedule: Schedule, why: Sequence[str]) -> None:
        self.rejected.append(f"{schedule.label}: {'; '.join(why)}")
        most = max(map(spilled_by, why), default=0)
        self.spilled[schedule.rows] = max(most, self.spilled.get(schedule.rows, 0))
        self.needs_fewer |= schedule.rows is not None

    def repeat(self, schedule: Schedule) -> None:
        """Note that a schedule has the same kernel as an earlier candidate.

        This happens if the schedule already has as few rows as `rows`.
        """
        self.refused.add(schedule.name)
        self.spilled[schedule.rows] = max(self.spilled.values(), default=0)

    def is_hopeless(self, schedule: Schedule) -> bool:
        """Return True if earlier trials show that flexc would reject a schedule.

        The schedule must have roles.
        """
        most = MAX_SPILLED_SHARED if self.has_residents else MAX_SPILLED
        return (
            schedule.name in self.refused
            or (self.needs_fewer and schedule.rows is None)
            or self.spilled.get(schedule.rows, 0) > (schedule.spilled_before or most)
            or max(self.spilled.values(), default=0) > most
        )


def choose(
    build: Build, lower: Lower, check: Check, residents: Residents = lambda: 1
) -> KernelSpec:
    """Return the kernel of the first schedule that works and compiles well.

    A schedule that the user asked for need not compile well; its spec lists the
    problems. Raise ScheduleError if that schedule is impossible.
    """
    found, asked = candidates(build, residents), build.tiles.schedule
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
    raise ScheduleError(f"no schedule suits the kernel: {'; '.join(trials.rejected)}")


def choose_tiles(
    build: Build, schedule: Schedule, lower: Lower, check: Check, trials: Trials
) -> KernelSpec:
    """Return the kernel of a schedule with the largest tiles that fit shared memory.

    Raise OptionError or CompilationError if no tiles fit.
    """
    why: Sequence[str] = ()

    def tried(spec: KernelSpec, most_spilled: int) -> Sequence[str]:
        return copied_too_much(spec, build) or check(spec, most_spilled)

    for smaller in (schedule, *smaller_tiles(schedule)):
        spec, found = attempt(smaller, lower, tried, trials)
        if spec is not None and not found:
            return chosen(spec, smaller, trials.rejected)
        if spec is not None:
            trials.reject(smaller, why := found)
    raise too_large(build.tiles, "; ".join(why))


def copied_too_much(spec: KernelSpec, build: Build) -> list[str]:
    """Return why copies ahead exceed shared memory, without compiling the kernel.

    With one stage nothing is copied ahead, so tiles with one stage pass this check. A
    given `num_stages` disables the check.
    """
    needed, there = spec.copied_ahead, build.shared_memory
    if needed <= there or build.tiles.num_stages is not None:
        return []
    return [f"copies {needed} bytes to shared memory ahead, and {there} are there"]


def too_large(tiles: TileOptions, why: str) -> FlexcError:
    """Return the error for a build of which no tile fits.

    The tiles include the options that the user chose.
    """
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
    """Lower a schedule; return its kernel and the problems of the compiled kernel.

    Return None for the kernel if the same kernel was tried before.
    """
    spec = lower(schedule)
    if spec.digest in trials.digests:
        return None, ()
    trials.digests.add(spec.digest)
    return spec, check(spec, schedule.most_spilled)


def chosen(spec: KernelSpec, schedule: Schedule, rejected: Sequence[str]) -> KernelSpec:
    """Log how a spec was chosen; return the spec with this information."""
    for reason in rejected:
        log.info("%s: not %s", spec.entry, reason)
    log.info("%s: schedule %s", spec.entry, schedule.label)
    return replace(spec, schedule=schedule.label, rejected=tuple(rejected))
