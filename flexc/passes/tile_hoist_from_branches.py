"""`tile-hoist-from-branches`: what a loop need not repeat, no branch of it does.

Loop-invariant code motion looks at the ops of a loop, not at those in a branch of
its body. Pure ops there that depend on nothing of the loop are moved before it.

With `reads`, vectors that a branch reads from memory for its columns are read before
it: a program that waits for scores then waits for them at the same time, and where it
does not take the branch it has read them in vain.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.traits import is_side_effect_free, is_speculatable
from xdsl.transforms.loop_invariant_code_motion import can_be_hoisted

from flexc.dialects import tile


@dataclass(frozen=True)
class HoistFromBranches(RewritePattern):
    """Move invariant ops of a loop's branches before it, and reads before these."""

    reads: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: scf.IfOp, rewriter: PatternRewriter) -> None:
        loop = op.parent_op()
        if not isinstance(loop, scf.ForOp):
            return
        inside = {o for region in op.regions for o in region.walk()}
        for inner in [o for r in op.regions for block in r.blocks for o in block.ops]:
            if not is_movable(inner):
                continue
            if can_be_hoisted(inner, loop.body):
                place = InsertPoint.before(loop)
            elif self.reads and is_read_of_vector(inner, inside):
                place = InsertPoint.before(op)
            else:
                continue
            inside.discard(inner)
            inner.detach()
            rewriter.insert(inner, place)


def is_movable(op: Operation) -> bool:
    """Whether nothing is lost if an op is done where it was not asked for."""
    return is_side_effect_free(op) and is_speculatable(op)


def is_read_of_vector(op: Operation, inside: set[Operation]) -> bool:
    """Whether an op reads a value for each row or column, of none of these ops."""
    return (
        isinstance(op, tile.MapOp)
        and len(op.shape) == 1
        and any(isinstance(inner, tile.ReadOp) for inner in op.body.walk())
        and all(value.owner not in inside for value in op.operands)
    )


@dataclass(frozen=True)
class TileHoistFromBranchesPass(ModulePass):
    """Move loop-invariant code out of a loop's branches."""

    name = "tile-hoist-from-branches"

    reads: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            HoistFromBranches(self.reads), apply_recursively=False
        ).rewrite_module(op)
