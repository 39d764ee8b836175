"""`tile-read-in-place`: mark gathers to keep them in the layout of the scores.

Triton gives a load the layout that suits memory best, and converts the loaded tile to
the layout of the matrix product through shared memory. If each element of a tile has an
address of its own, there is nothing to coalesce, and the conversion costs more than the
loads. This pass marks captured reads at full rank of a map, except reads that are
contiguous along columns in rows that may be aligned. A target prints a marked read as
instructions of the thread that computes with the element. A marked read includes the
widening to f32 that follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    IntegerType,
    ModuleOp,
    UnitAttr,
    f32,
    i32,
)
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import tile
from flexc.passes.scalar.strides import step_along
from flexc.passes.tile.tile_split_maps import variance

SIXTEEN_BITS = (BFloat16Type, Float16Type)


def is_supported(element: Attribute, widened: bool) -> bool:
    """Return True if one instruction loads an element, and widens it if `widened`."""
    if isinstance(element, SIXTEEN_BITS):
        return widened
    return element in (f32, i32)


class ReadInPlace(RewritePattern):
    """A pattern that marks a read that varies along both dimensions of its map."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReadOp, rewriter: PatternRewriter) -> None:
        parent = op.parent_op()
        if not isinstance(parent, tile.MapOp) or "in_place" in op.attributes:
            return
        assert isinstance(op.offset.type, IntegerType)
        if not is_gather(op, parent):
            return
        users = [use.operation for use in op.result.uses]
        widening = users[0] if len(users) == 1 else None
        widens = isinstance(widening, arith.ExtFOp) and widening.result.type == f32
        if not is_supported(op.result.type, widens):
            return
        if not isinstance(op.result.type, SIXTEEN_BITS):
            op.attributes["in_place"] = UnitAttr()
            rewriter.notify_op_modified(op)
            return
        assert widening is not None
        read = tile.ReadOp(op.tensor, op.offset, op.valid, f32)
        read.attributes["in_place"] = UnitAttr()
        read.result.name_hint = op.result.name_hint
        read.location = op.location
        rewriter.replace(widening, read)
        rewriter.erase(op)


def is_gather(op: tile.ReadOp, parent: tile.MapOp) -> bool:
    """Return True if each element of a full tile has an address of its own."""
    if len(parent.shape) != 2 or variance(parent)[op.offset] != frozenset((0, 1)):
        return False
    row, column = (step_along(parent, op.offset, dim) for dim in (0, 1))
    # Rows that begin at any element, as along diagonals, cannot be vector loads.
    return column != 1 or row in (1, -1)


@dataclass(frozen=True)
class TileReadInPlacePass(ModulePass):
    """Mark captured reads that are gathers at full rank."""

    name = "tile-read-in-place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(ReadInPlace(), apply_recursively=False).rewrite_module(op)
