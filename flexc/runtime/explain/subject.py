"""The subject of an explanation: a call of attention, and the choices of its kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

from torch import Tensor

from flexc.dialects import flex
from flexc.dialects.flex import KeyRangesAttr
from flexc.dialects.mod_region import yielded
from flexc.passes.flex.convert_flex_to_blocksparse import attention_shape
from flexc.passes.flex.flex_infer_key_ranges import ranges_for
from flexc.passes.scalar import Proof, WhyNot
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.variation import Along, Dependences
from flexc.passes.targets.target import TileSizes
from flexc.runtime.attention.call import Attention
from flexc.runtime.attention.few_rows import few_rows, fold, rows_of_blocks
from flexc.runtime.attention.run import count_splits
from flexc.runtime.autograd.template import outputs_with_lse
from flexc.runtime.kernels.driver import CompiledMods, Proved, convert_for, known_spec
from flexc.runtime.kernels.proofs import (
    MIN_PLANNED_PAIRS,
    Given,
    MaskReading,
    attention_of,
    known_of,
    numbers_of,
)
from flexc.runtime.kernels.schedules import Candidates, Schedule

BlockSource = Literal["no mask", "bounds", "planned", "tables", "every pair"]
"""The way to find the blocks to visit."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A call, and its mods at the level of `flex`."""

    call: Attention
    """The call, with the tables of its BlockMask if it has one."""
    proved: Proved
    """The facts that are proved of the call without tables, and what follows from them:
    its module with the mods as the user wrote them, and simplified.
    """
    captures: Sequence[Any]
    schedule: Schedule | None = None
    """The schedule of the call's GPU kernel; None stands for the preferred schedule."""

    @classmethod
    def of(cls, call: Attention) -> Subject:
        call = call.with_traced()
        compiled = replace(call, tables=None).compiled()
        captures = compiled.attention.arguments(call.signature.captures)
        return cls(call, compiled.proved(call.sizes, captures), captures)

    @cached_property
    def few_rows(self) -> tuple[int, int] | None:
        """The heads and queries of a program's rows, if the call has few rows, else
        None.
        """
        return few_rows(self.call)

    @property
    def written(self) -> flex.AttentionOp:
        return attention_of(self.proved.module)

    @property
    def simple(self) -> flex.AttentionOp:
        """The attention op as analyses read it."""
        return self.proved.simple

    @property
    def reading(self) -> MaskReading:
        return self.proved.mask

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.call.sizes

    @property
    def positions(self) -> list[Interval]:
        return [Interval(0, n - 1) for n in self.sizes]

    @property
    def known(self) -> Sequence[Given]:
        """The shapes and integers of the captures, as proofs use them."""
        return known_of(self.captures)

    @property
    def numbers(self) -> Sequence[float | int | None]:
        return numbers_of(self.captures)

    @cached_property
    def on_host(self) -> list[Any]:
        """The captures on the CPU, where small regions are interpreted."""
        return [c.cpu() if isinstance(c, Tensor) else c for c in self.captures]

    @cached_property
    def bounds(self) -> Proof[KeyRangesAttr]:
        """The ranges of keys of the mask, for the tile of the kernel."""
        tile = self.own_tile
        return ranges_for(self.simple, tile.block_m, tile.block_n)

    @cached_property
    def along(self) -> Along:
        """The arguments that the mask depends on."""
        mask = self.simple.mask_mod
        return Dependences(mask)[yielded(mask.block)[0]]

    @cached_property
    def way(self) -> BlockSource:
        tables, reading = self.call.tables, self.reading
        if self.call.computed_by.is_dense:
            return "every pair"
        if tables is not None and tables.origin is None:
            return "tables"
        if reading.is_trivial:
            return "no mask"
        if reading.has_bounds:
            return "bounds"
        if tables is not None:
            return "tables"
        may_plan = replace(self.call, few_rows=self.few_rows).may_plan
        planned = may_plan and reading.is_planned(self.sizes)
        return "planned" if planned else "every pair"

    @property
    def why(self) -> str:
        """The reason for `way`."""
        match self.way:
            case "no mask":
                return "every block is visited"
            case "bounds":
                return "the kernel computes from the mask which blocks it visits"
            case "planned":
                return "all blocks are classified before the kernel runs"
            case "tables":
                why = "its BlockMask says which blocks are visited"
                hint = "; given as mask_mod=, the mask needs no tables"
                return why + hint if self.reading.has_bounds else why
            case "every pair":
                return self._why_every_pair()

    def _why_every_pair(self) -> str:
        if self.call.computed_by.is_dense:
            return 'backend="eager" computes all pairs at once'
        if isinstance(self.reading.classifier, WhyNot):
            return "no block is skipped, as none is known to be dead"
        return (
            "no block is skipped, as to plan fewer than "
            f"{MIN_PLANNED_PAIRS:,} pairs costs more than it saves"
        )

    @cached_property
    def own_tile(self) -> TileSizes:
        """The tile of the kernel for calls without tables.

        With few rows, the tile has the rows of one head.
        """
        if self.few_rows is not None:
            return replace(self.tile_of(None), block_m=self.few_rows[1])
        if self.schedule is None:
            return self.reading.tile
        convert = convert_for(self.proved.build, self.schedule)
        return convert.tile_sizes(self.simple)

    @property
    def reads_values_from_keys(self) -> bool:
        """True if a tile of keys also serves as values."""
        convert = convert_for(self.proved.build, self.schedule)
        return convert.reads_values_from_keys(self.simple)

    @property
    def tile(self) -> TileSizes:
        """The tile of the kernel that runs."""
        if self.few_rows is None and self.way in ("no mask", "bounds", "every pair"):
            return self.own_tile
        if self.way not in ("planned", "tables"):
            return self.tile_of(None)
        rows, columns = self.block
        if self.few_rows is not None:
            rows = rows_of_blocks(self.call, self.few_rows)
        return self.tile_of((rows, columns))

    def tile_of(self, block: tuple[int, int] | None) -> TileSizes:
        """Return the tile of a kernel for tables of these blocks, or without tables."""
        sizes = self.call.choices.tiles.sizes
        asked = {k: v for k, v in sizes.items() if v is not None}
        may_be_short = not {"block_m", "block_n"} & asked.keys()
        shape = replace(
            attention_shape(self.simple),
            sparse_block=block,
            short_rows=may_be_short,
            rows=self.few_rows and prod(self.few_rows),
        )
        chosen = convert_for(self.proved.build, self.schedule).choose(shape)
        return replace(chosen, **asked)

    @property
    def block(self) -> tuple[int, int]:
        """The rows and columns of the blocks that are skipped or visited."""
        if self.way == "planned":
            return self.reading.block_for(*self.sizes[2:])
        if self.way == "tables":
            assert self.call.tables is not None
            return self.call.tables.block_size
        return self.own_tile.block_m, self.own_tile.block_n


UNKNOWN = "the first call finds out"

SPLIT = (
    "the keys of each row are shared out among {} programs, as there are too few rows "
    "to keep the GPU busy; a second kernel combines what they give"
)


@dataclass(frozen=True)
class ScheduleFacts:
    """The schedule of a call's kernel, and the reasons against preferred schedules."""

    name: str | None
    """The label of the schedule; None if the kernel is not compiled yet."""
    candidates: Candidates
    """The schedules that the kernel may have."""
    rejected: tuple[str, ...]
    """The labels of rejected schedules, each with the reason."""
    splits: int = 1
    """The number of programs that share the keys of each row."""

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
        """Yield the split of keys, if any, and the rejected schedules with reasons."""
        if self.splits > 1:
            yield "split", SPLIT.format(self.splits)
        for reason in self.rejected:
            names, _, why = reason.partition(": ")
            yield f"not {names}", why


def schedule_of(subject: Subject, differentiated: bool) -> ScheduleFacts | None:
    """Return the schedule of a call's kernel; None on backends without schedules."""
    call = subject.call
    if not call.computed_by.for_gpu:
        return None
    if differentiated:
        call = replace(call, outputs=outputs_with_lse(call))
    if (rows := few_rows(call)) is not None:
        call, _ = fold(call, rows, ())
    compiled = compiled_for(subject, call)
    proved = compiled.proved(call.sizes, subject.captures)
    splits = count_splits(call, proved)
    if splits > 1:
        proved = compiled.split.under(proved.proofs)
    spec, found = known_spec(proved.module, proved.build), proved.candidates
    if spec is not None:
        return ScheduleFacts(spec.schedule, found, spec.rejected, splits)
    only = found.schedules[0].label if len(found.schedules) == 1 else None
    return ScheduleFacts(only, found, found.rejected, splits)


def compiled_for(subject: Subject, call: Attention) -> CompiledMods:
    """Return the kernels that a call runs, for the call's way to find blocks."""
    if subject.way == "tables":
        return call.compiled()
    compiled = replace(call, tables=None).compiled()
    if subject.way != "planned":
        return compiled
    tabled = replace(compiled.build.call, sparse_block=subject.block, full_tables=True)
    return CompiledMods(compiled.mods, replace(compiled.build, call=tabled))
