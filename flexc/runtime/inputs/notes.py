"""Facts of a BlockMask's tables, kept with the BlockMask while its tables are
unchanged.

For tables that flexc made, the notes also hold the mask. Any tables or bounds found
from this mask may replace such tables.
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
"""The names of the eight tables: partial and full blocks of keys, then of queries."""

MAX_KEPT = 64
"""The number of kinds of calls for which values are kept."""


@dataclass(frozen=True, eq=False)
class Capture:
    """A captured value. For a tensor, `version` counts the writes to it so far."""

    value: Any
    version: int | None

    @classmethod
    def of(cls, value: Any) -> Capture:
        counted = isinstance(value, Tensor) and not value.is_inference()
        return cls(value, value._version if counted else None)

    def still_is(self, value: Any) -> bool:
        """Return True if a value equals the captured one.

        Tensors of inference mode have no version, so they may have changed.
        """
        if isinstance(value, Tensor):
            same = value is self.value and self.version is not None
            return same and value._version == self.version
        return type(value) is type(self.value) and value == self.value


def are_still(noted: Sequence[Capture], values: Sequence[Any]) -> bool:
    """Return True if the values are those that were noted."""
    if len(noted) != len(values):
        return False
    for capture, value in zip(noted, values, strict=True):
        if not capture.still_is(value):
            return False
    return True


@dataclass(frozen=True, eq=False)
class MaskOrigin:
    """A mask whose blocks flexc found, with the captures at that time."""

    mask_mod: Callable[..., Any]
    captures: tuple[Capture, ...]

    def is_current(self) -> bool:
        """Return True if the mask's captures are provably unchanged."""
        return are_still(self.captures, read_mods(None, self.mask_mod).captures)


@dataclass(frozen=True, eq=False)
class Notes:
    """Facts of the tables of a BlockMask. The BlockMask may get other tables later."""

    tables: tuple[Tensor | None, ...]
    versions: tuple[int, ...] | None
    """The numbers of writes to the tables. None for tensors of inference mode."""
    origin: MaskOrigin | None = None
    kept: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """Values made from the tables, for each kind of call."""

    @classmethod
    def of(cls, block_mask: BlockMask) -> Notes:
        """Return a BlockMask's notes. They are new if its tables have changed."""
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
        """The tables of columns of keys. torch's BlockMask may lack them."""
        return [t for t in self.tables[4:] if t is not None]

    def keep(self, kind: Hashable, made: Any) -> Any:
        """Keep a value for a kind of calls, and return it."""
        if len(self.kept) >= MAX_KEPT:
            self.kept.clear()
        self.kept[kind] = made
        return made

    def __reduce__(self) -> Any:
        """Drop the notes of copies, which have tables of their own."""
        return type(None), ()


tables_of: Callable[[BlockMask], tuple[Tensor | None, ...]] = attrgetter(*TABLES)
"""A function that returns the tables of a BlockMask."""


def versions_of(tables: Sequence[Tensor | None]) -> tuple[int, ...] | None:
    """Return the numbers of writes to tables, None for tensors of inference mode."""
    try:
        return tuple([t._version for t in tables if t is not None])
    except RuntimeError:  # Some tensors are of inference mode.
        return None


def sign(block_mask: BlockMask, captures: Sequence[Any]) -> BlockMask:
    """Note that a BlockMask's tables list the blocks of its own mask.

    The tables list exactly the blocks in which `mask_mod` has a live pair, for the
    given captures. So bounds or finer blocks found from the mask may replace the
    tables.
    """
    origin = MaskOrigin(block_mask.mask_mod, tuple(map(Capture.of, captures)))
    tables = tables_of(block_mask)
    setattr(block_mask, ATTRIBUTE, Notes(tables, versions_of(tables), origin))
    return block_mask


def origin_of(block_mask: BlockMask) -> MaskOrigin | None:
    """Return the origin of a BlockMask that `flexc.create_block_mask` made, else None.

    Slices, moved masks, and masks with a table replaced or written to have no origin.
    """
    origin = Notes.of(block_mask).origin
    return origin if origin and origin.mask_mod is block_mask.mask_mod else None
