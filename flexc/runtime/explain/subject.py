"""What is explained: a call of attention, and how its kernel goes about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects import flex
from flexc.passes import pipelines
from flexc.passes.masks.bounds.key_ranges import KeyRanges
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.scalar.dependence import (
    Along,
    Dependences,
    yielded,
)
from flexc.passes.scalar.proof import Proof, WhyNot
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.sizes.tile_sizes import TileSizes
from flexc.runtime.attention.call import Attention
from flexc.runtime.attention.few_rows import few_rows
from flexc.runtime.kernels.driver import Compiled, convert_for
from flexc.runtime.kernels.mask_reading import MIN_PLANNED_PAIRS, MaskReading
from flexc.runtime.kernels.proofs import Known, attention_of
from flexc.runtime.kernels.schedules import Schedule

Way = Literal["no mask", "bounds", "planned", "tables", "every pair"]
"""How the blocks to visit are found."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A call, and its mods at the level of `flex`."""

    call: Attention
    """With the tables of a BlockMask, where it was given one."""
    compiled: Compiled
    """The same call without tables."""
    captures: Sequence[Any]
    module: ModuleOp
    """As the user wrote it, with what was proved of this call."""
    simple: flex.AttentionOp
    """As analyses read it."""
    reading: MaskReading
    schedule: Schedule | None = None
    """That of its kernel on a GPU, where it is known; else the best is taken."""

    @classmethod
    def of(cls, call: Attention) -> Subject:
        call = call.with_traced()
        compiled = replace(call, tables=None).compiled()
        captures = compiled.attention.arguments(call.signature.captures)
        proofs = compiled.proofs(call.query, call.key, captures)
        module = proofs.stated_in(compiled.attention.module)
        simple = module.clone()
        pipelines.run(pipelines.to_simple_flex(), Context(), simple)
        reading = compiled.mask(proofs)
        return cls(call, compiled, captures, module, attention_of(simple), reading)

    @cached_property
    def few_rows(self) -> tuple[int, int] | None:
        """Of how many heads and queries the rows of a program are, if these are few."""
        return few_rows(self.call)

    @property
    def written(self) -> flex.AttentionOp:
        return attention_of(self.module)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, q_len, kv_len."""
        batch, heads, q_len, _ = self.call.query.shape
        return batch, heads, q_len, self.call.key.size(2)

    @property
    def positions(self) -> list[Interval]:
        return [Interval(0, n - 1) for n in self.sizes]

    @property
    def known(self) -> list[Known]:
        """What the proofs about a call know of its captures."""
        return [
            tuple(c.shape)
            if isinstance(c, Tensor)
            else (c if isinstance(c, int) else None)
            for c in self.captures
        ]

    @property
    def numbers(self) -> list[float | int | None]:
        return [None if isinstance(c, Tensor) else c for c in self.captures]

    @cached_property
    def on_host(self) -> list[Any]:
        """The captures on the CPU, where small pieces of code are interpreted."""
        return [c.cpu() if isinstance(c, Tensor) else c for c in self.captures]

    @cached_property
    def bounds(self) -> Proof[KeyRanges]:
        """The ranges of keys of the mask, in the values of `simple`."""
        tile = self.own_tile
        return SegmentSubject.of(self.simple).ranges(tile.block_m, tile.block_n)

    @cached_property
    def along(self) -> Along:
        """What the mask depends on."""
        mask = self.simple.mask_mod
        return Dependences(mask)[yielded(mask)]

    @cached_property
    def way(self) -> Way:
        tables, reading = self.call.tables, self.reading
        if self.call.backend == "eager":
            return "every pair"
        if tables is not None and not tables.replaceable:
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
        """Why the blocks are found in this way."""
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
        if self.call.backend == "eager":
            return 'backend="eager" computes all pairs at once'
        if isinstance(self.reading.classifier, WhyNot):
            return "no block is skipped, as none is known to be dead"
        return (
            "no block is skipped, as to plan fewer than "
            f"{MIN_PLANNED_PAIRS:,} pairs costs more than it saves"
        )

    @cached_property
    def own_tile(self) -> TileSizes:
        """The tile of the kernel for calls without tables, of rows of one head."""
        if self.few_rows is not None:
            return replace(self.tile_of(None), block_m=self.few_rows[1])
        if self.schedule is None:
            return self.reading.tile
        convert = convert_for(self.compiled.build, self.schedule)
        return convert.tile_sizes(self.simple)

    @property
    def tile(self) -> TileSizes:
        """The tile of the kernel that runs."""
        if self.few_rows is None and self.way in ("no mask", "bounds", "every pair"):
            return self.own_tile
        if self.way not in ("planned", "tables"):
            return self.tile_of(None)
        rows, columns = self.block
        return self.tile_of((prod(self.few_rows or (rows,)), columns))

    def tile_of(self, block: tuple[int, int] | None) -> TileSizes:
        """The tile of a kernel for tables of such blocks, or without tables."""
        query, value = self.call.query, self.call.value
        sizes = self.call.tiles.sizes
        asked = {k: v for k, v in sizes.items() if v is not None}
        chosen = convert_for(self.compiled.build, self.schedule).choose(
            8 * query.element_size(),
            query.size(3),
            value.size(3),
            block,
            not {"block_m", "block_n"} & asked.keys(),
            self.few_rows and prod(self.few_rows),
        )
        return replace(chosen, **asked)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the blocks that are skipped or visited."""
        if self.way == "planned":
            return self.reading.block_for(*self.sizes[2:])
        if self.way == "tables":
            assert self.call.tables is not None
            return self.call.tables.block_size
        return self.own_tile.block_m, self.own_tile.block_n
