"""`tile-hoist-from-branches`: move loop-invariant ops out of a loop's branches.

Loop-invariant code motion looks at the ops of a loop, but not at ops in a branch of its
body. This pass moves pure ops of branches before the loop if they do not depend on the
loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
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


class HoistFromBranches(RewritePattern):
    """A pattern that moves invariant ops of a loop's branches before the loop."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: scf.IfOp, rewriter: PatternRewriter) -> None:
        loop = op.parent_op()
        if not isinstance(loop, scf.ForOp):
            return
        for inner in [o for r in op.regions for block in r.blocks for o in block.ops]:
            if (
                is_side_effect_free(inner)
                and is_speculatable(inner)
                and can_be_hoisted(inner, loop.body)
            ):
                inner.detach()
                rewriter.insert(inner, InsertPoint.before(loop))


@dataclass(frozen=True)
class TileHoistFromBranchesPass(ModulePass):
    """Move loop-invariant code out of a loop's branches."""

    name = "tile-hoist-from-branches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            HoistFromBranches(), apply_recursively=False
        ).rewrite_module(op)
