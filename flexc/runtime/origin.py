"""Which BlockMasks flexc made: their tables say nothing that the mask does not.

So attention need not keep to their blocks. Where finer ones suit its tile, it plans
them once and they are remembered here, as long as what the mask captures stays what
it was when the BlockMask was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.closures import read_mods

ATTRIBUTE = "_flexc_origin"


@dataclass(frozen=True, eq=False)
class Origin:
    """What a BlockMask held when it was made: users may put other things there."""

    mask_mod: Callable[..., Any]
    tables: tuple[Capture, ...]
    captures: tuple[Capture, ...]
    planned: dict[Any, Any] = field(default_factory=dict)
    """Tables that attention planned for itself, for each kind of call."""

    def is_current(self) -> bool:
        """Whether the mask captures what it did, as far as can be told."""
        captures = read_mods(None, self.mask_mod).captures
        return len(captures) == len(self.captures) and all(
            made.still_is(value)
            for made, value in zip(self.captures, captures, strict=True)
        )


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


def tables_of(block_mask: BlockMask) -> tuple[Tensor | None, ...]:
    return (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
    )


def sign(block_mask: BlockMask, captures: Sequence[Any] | None = None) -> BlockMask:
    """Note that the tables are those of the mask itself, and of which captures."""
    mask_mod = block_mask.mask_mod
    if captures is None:
        captures = read_mods(None, mask_mod).captures
    noted = tuple(Capture.of(c) for c in captures)
    tables = tuple(Capture.of(t) for t in tables_of(block_mask))
    origin = Origin(mask_mod, tables, noted)
    setattr(block_mask, ATTRIBUTE, origin)
    return block_mask


def made_by_flexc(block_mask: BlockMask) -> bool:
    return origin_of(block_mask) is not None


def origin_of(block_mask: BlockMask) -> Origin | None:
    """The origin of a BlockMask that is as `flexc.create_block_mask` made it.

    Its tables list the blocks in which its `mask_mod` has a live pair and no
    others, so that bounds found from the mask may take their place (and read what it
    captures at the call). Slices, moved masks, and those of which a table was
    exchanged or written to are not; nor are their tables known to be the mask's.
    """
    origin = getattr(block_mask, ATTRIBUTE, None)
    if origin is None or origin.mask_mod is not block_mask.mask_mod:
        return None
    pairs = zip(origin.tables, tables_of(block_mask), strict=True)
    return origin if all(made.still_is(held) for made, held in pairs) else None
