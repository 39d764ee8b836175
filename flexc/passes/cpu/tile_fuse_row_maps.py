"""`tile-fuse-row-maps`: fuse maps of one dimension, which small loops compute.

1. A later map moves up to an earlier one, if it reads nothing that is computed between
   them, or the earlier one moves down, if nothing between them reads it.
2. Values that only the fused map reads have no buffer.
3. Maps that compute with 64-bit numbers are not fused with maps that do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import tile
from flexc.passes.cpu.tile_panel_maps import is_known_before, joined
from flexc.passes.tile.map_builder import is_wide


def row_maps(block: Block) -> list[tile.MapOp]:
    """Return the maps of one dimension, in order."""
    return [o for o in block.ops if isinstance(o, tile.MapOp) and len(o.shape) == 1]


def place_of(op: tile.MapOp, after: tile.MapOp) -> Operation | None:
    """Return the place where two maps of rows can be one, None if there is none."""
    if op.shape != after.shape or is_wide(op) != is_wide(after):
        return None
    others = [value for value in after.inputs if value.owner is not op]
    if all(is_known_before(value, op) for value in others):
        return op
    block = op.parent
    assert block is not None
    for result in op.results:
        for use in result.uses:
            user = block.find_ancestor_op_in_block(use.operation)
            if (
                user is not None
                and user is not after
                and user.is_before_in_block(after)
            ):
                return None
    return after


def fuse_row_maps(block: Block) -> None:
    """Fuse maps of rows that can be computed at one place."""
    for op in row_maps(block):
        maps = row_maps(block)
        for before in reversed(maps[: maps.index(op)]):
            if (place := place_of(before, op)) is not None:
                one_row_map(before, op, place)
                break


def one_row_map(op: tile.MapOp, after: tile.MapOp, place: Operation) -> None:
    """Insert one map with the used results of both before `place`; erase both."""
    inputs, body = joined(op, after)
    last = body.block.last_op
    assert last is not None
    results = [*op.results, *after.results]
    both = op, after
    used = [
        (result, value)
        for result, value in zip(results, last.operands, strict=True)
        if any(use.operation not in both for use in result.uses)
    ]
    last.operands = [value for _, value in used]
    new = tile.MapOp(
        [value for value, _ in inputs],
        [span for _, span in inputs],
        [result.type for result, _ in used],
        body,
    )
    Rewriter.insert_op(new, InsertPoint.before(place))
    for (old, _), result in zip(used, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_uses_with_if(result, lambda use: use.operation not in both)
    for old in (after, op):
        Rewriter.erase_op(old)


@dataclass(frozen=True)
class TileFuseRowMapsPass(ModulePass):
    """Fuse maps of one dimension."""

    name = "tile-fuse-row-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        region_dce(op.body)
        for inner in list(op.walk()):
            if not isinstance(inner, tile.PanelMapOp | tile.MapOp):
                for region in inner.regions:
                    for block in region.blocks:
                        fuse_row_maps(block)
