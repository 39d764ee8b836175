"""How a GPU's kernel shares its work among its warps, as far as that is known.

A kernel is not compiled to be explained: its schedule is known once it was run, here
or by another process with the same cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd.template import outputs_with_lse
from flexc.runtime.explain.subject import Subject
from flexc.runtime.kernels.driver import (
    Compiled,
    crowd_of,
    known_spec,
)
from flexc.runtime.kernels.schedules import (
    Candidates,
    Schedule,
    candidates,
)

UNKNOWN = "the first call finds out"

SPLIT = (
    "the keys of each row are shared out among {} programs, as there are too few rows "
    "to keep the GPU busy; a second kernel combines what they give"
)


@dataclass(frozen=True)
class ScheduleFacts:
    """The schedule of a call's kernel, and why it has none that is preferred."""

    name: str | None
    """None if the kernel was not compiled yet."""
    candidates: Candidates
    """The schedules that it may have."""
    rejected: tuple[str, ...]
    """Names of schedules, and why they were left."""
    splits: int = 1
    """Among how many programs the keys of each row are split."""

    @property
    def about(self) -> str:
        if self.name is not None:
            assert self.chosen is not None
            return f"{self.name}: {self.chosen.about}"
        *others, last = self.candidates.names
        return f"{', '.join(others)} or {last}: {UNKNOWN}"

    @property
    def chosen(self) -> Schedule | None:
        return None if self.name is None else self.candidates.labelled(self.name)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Whether keys are split, and what was left, and why."""
        if self.splits > 1:
            yield "split", SPLIT.format(self.splits)
        for reason in self.rejected:
            names, _, why = reason.partition(": ")
            yield f"not {names}", why


def schedule_of(subject: Subject, differentiated: bool) -> ScheduleFacts | None:
    """The schedule of a call's kernel; None where there is nothing to choose."""
    call = subject.call
    if call.backend != "triton":
        return None
    if differentiated:
        call = replace(call, outputs=outputs_with_lse(call))
    compiled = compiled_for(subject, call)
    build, captures = compiled.build, subject.captures
    proofs = compiled.proofs(call.query, call.key, captures)
    splits = call.splits(compiled, proofs)
    if splits > 1:
        compiled = compiled.split
        build = compiled.build
    module = proofs.stated_in(compiled.attention.module)
    spec = known_spec(module, build)
    found = candidates(build, lambda: crowd_of(module, build))
    if spec is not None:
        return ScheduleFacts(spec.schedule, found, spec.rejected, splits)
    only = found.schedules[0].label if len(found.schedules) == 1 else None
    return ScheduleFacts(only, found, found.rejected, splits)


def compiled_for(subject: Subject, call: Attention) -> Compiled:
    """What a call runs, with the blocks that are found for it."""
    if subject.way == "tables":
        return call.compiled()
    compiled = replace(call, tables=None).compiled()
    if subject.way != "planned":
        return compiled
    tabled = replace(compiled.build.call, sparse_block=subject.block, full_tables=True)
    return Compiled(compiled.mods, replace(compiled.build, call=tabled))
