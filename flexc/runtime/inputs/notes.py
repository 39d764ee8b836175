"""What is known of a BlockMask's tables, kept with it while these stay the same.

Of tables that flexc made that is also the mask whose blocks they list: whatever says
the same may take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.closures import read_mods

ATTRIBUTE = "_flexc_notes"

TABLES = tuple(
    f"{full}{side}_{what}"
    for side in ("kv", "q")
    for full in ("", "full_")
    for what in ("num_blocks", "indices")
)
"""The eight tables: partial and full blocks of keys, then of queries."""

MAX_KEPT = 64
"""Kinds of calls for which something is kept."""


@dataclass(frozen=True, eq=False)
class Capture:
    """A captured value, and of a tensor how often it had been written to."""

    value: Any
    version: int | None

    @classmethod
    def of(cls, value: Any) -> Capture:
        counted = isinstance(value, Tensor) and not value.is_inference()
        return cls(value, value._version if counted else None)

    def still_is(self, value: Any) -> bool:
        """Tensors of inference mode do not count, so they may have changed."""
        if isinstance(value, Tensor):
            same = value is self.value and self.version is not None
            return same and value._version == self.version
        return type(value) is type(self.value) and value == self.value


def are_still(noted: Sequence[Capture], values: Sequence[Any]) -> bool:
    """Whether values are those that were noted."""
    if len(noted) != len(values):
        return False
    for capture, value in zip(noted, values, strict=True):
        if not capture.still_is(value):
            return False
    return True


@dataclass(frozen=True, eq=False)
class Origin:
    """A mask whose blocks flexc found, and what it captured then."""

    mask_mod: Callable[..., Any]
    captures: tuple[Capture, ...]

    def is_current(self) -> bool:
        """Whether the mask captures what it did, as far as can be told."""
        return are_still(self.captures, read_mods(None, self.mask_mod).captures)


@dataclass(frozen=True, eq=False)
class Notes:
    """What is known of the tables that a BlockMask holds: others may come there."""

    tables: tuple[Tensor | None, ...]
    versions: tuple[int, ...] | None
    """How often these had been written to; tensors of inference mode do not count."""
    origin: Origin | None = None
    kept: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """What was made of the tables, for each kind of call."""

    @classmethod
    def of(cls, block_mask: BlockMask) -> Notes:
        """A BlockMask's; new ones if its tables are others, or were written to."""
        notes: Notes | None = getattr(block_mask, ATTRIBUTE, None)
        tables = tables_of(block_mask)
        if (
            notes is None
            or not all(map(is_, notes.tables, tables))
            or notes.versions is None
            or notes.versions != versions_of(tables)
        ):
            notes = cls(tables, versions_of(tables))
            setattr(block_mask, ATTRIBUTE, notes)
        return notes

    @property
    def columns(self) -> list[Tensor]:
        """The tables of the columns of keys, which torch can do without."""
        return [t for t in self.tables[4:] if t is not None]

    def keep(self, kind: Hashable, made: Any) -> Any:
        """Keep what was made for a kind of calls."""
        if len(self.kept) >= MAX_KEPT:
            self.kept.clear()
        self.kept[kind] = made
        return made

    def __reduce__(self) -> Any:
        """Copies have tables of their own, and so begin anew."""
        return type(None), ()


tables_of: Callable[[BlockMask], tuple[Tensor | None, ...]] = attrgetter(*TABLES)
"""The tables that a BlockMask holds."""


def versions_of(tables: Sequence[Tensor | None]) -> tuple[int, ...] | None:
    """How often tables were written to, None if that is not counted."""
    try:
        return tuple([t._version for t in tables if t is not None])
    except RuntimeError:  # Some are of inference mode.
        return None


def sign(block_mask: BlockMask, captures: Sequence[Any]) -> BlockMask:
    """Note that the tables list the blocks of the mask itself, for what it captures.

    They list the blocks in which its `mask_mod` has a live pair and no others, so that
    bounds found from the mask may take their place, and finer blocks.
    """
    origin = Origin(block_mask.mask_mod, tuple(map(Capture.of, captures)))
    tables = tables_of(block_mask)
    setattr(block_mask, ATTRIBUTE, Notes(tables, versions_of(tables), origin))
    return block_mask


def made_by_flexc(block_mask: BlockMask) -> bool:
    return origin_of(block_mask) is not None


def origin_of(block_mask: BlockMask) -> Origin | None:
    """The origin of a BlockMask that is as `flexc.create_block_mask` made it.

    Slices, moved masks, and those of which a table was exchanged or written to are not.
    """
    origin = Notes.of(block_mask).origin
    return origin if origin and origin.mask_mod is block_mask.mask_mod else None
