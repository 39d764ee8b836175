"""What was found out of a BlockMask's tables, kept with it while they stay the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.origin import Capture

ATTRIBUTE = "_flexc_notes"

TABLES = tuple(
    f"{full}{side}_{what}"
    for side in ("kv", "q")
    for full in ("", "full_")
    for what in ("num_blocks", "indices")
)
"""The eight tables: partial and full blocks of keys, then of queries."""


@dataclass(frozen=True, eq=False)
class Source:
    """A BlockMask and the tables that it held at a call: others may come there."""

    block_mask: BlockMask
    tables: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, block_mask: BlockMask) -> Source:
        return cls(block_mask, tuple(getattr(block_mask, name) for name in TABLES))

    @property
    def rows(self) -> tuple[Tensor | None, ...]:
        """The tables of the rows of queries."""
        return self.tables[:4]

    @property
    def columns(self) -> tuple[Tensor | None, ...]:
        """The tables of the columns of keys, which torch can do without."""
        return self.tables[4:]

    def notes(self) -> Notes:
        """What is known of these tables; nothing yet of those that were written to."""
        notes = getattr(self.block_mask, ATTRIBUTE, None)
        if notes is None or not notes.are_about(self.tables):
            notes = Notes(tuple(map(Capture.of, self.tables)))
            setattr(self.block_mask, ATTRIBUTE, notes)
        return notes


@dataclass(frozen=True, eq=False)
class Notes:
    """What is known of some tables."""

    tables: tuple[Capture, ...]
    checked: set[Any] = field(default_factory=set[Any])
    """Sizes for which they were found to be in order."""
    columns: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Their blocks listed for each block of keys, for each kind of call."""

    settled: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """The tables that kernels read in their place, for each kind of call."""

    def are_about(self, tables: tuple[Tensor | None, ...]) -> bool:
        pairs = zip(self.tables, tables, strict=True)
        return all(noted.still_is(held) for noted, held in pairs)
