"""Which BlockMasks flexc made: their tables say nothing that the mask does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

ATTRIBUTE = "_flexc_origin"


@dataclass(frozen=True, eq=False)
class Origin:
    """What a BlockMask held when it was made: users may put other things there."""

    mask_mod: Callable[..., Any]
    tables: tuple[Tensor | None, ...]


def tables_of(block_mask: BlockMask) -> tuple[Tensor | None, ...]:
    return (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
    )


def sign(block_mask: BlockMask) -> BlockMask:
    """Note that the tables are those of the mask itself, whatever its captures."""
    origin = Origin(block_mask.mask_mod, tables_of(block_mask))
    setattr(block_mask, ATTRIBUTE, origin)
    return block_mask


def made_by_flexc(block_mask: BlockMask) -> bool:
    """Whether a BlockMask is as `flexc.create_block_mask` made it.

    Then its tables list the blocks in which its `mask_mod` has a live pair and no
    others, so that bounds found from the mask may take their place. Slices, moved
    and changed masks are not; nor are their tables known to be the mask's.
    """
    origin = getattr(block_mask, ATTRIBUTE, None)
    if origin is None or origin.mask_mod is not block_mask.mask_mod:
        return False
    pairs = zip(origin.tables, tables_of(block_mask), strict=True)
    return all(made is held for made, held in pairs)
