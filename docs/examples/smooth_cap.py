"""A plug-in: a dialect with one op, a rule that lowers it, a pass that caps scores.

It is found once it is installed with this entry point in its `pyproject.toml`:

    [project.entry-points."xdsl.universe"]
    smooth = "smooth_cap:PLUG_IN"
"""

from dataclasses import dataclass

from xdsl import irdl
from xdsl import pattern_rewriter as rewrite
from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp
from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe

from flexc.dialects import flex


@irdl.irdl_op_definition
class CapOp(irdl.IRDLOperation):
    """limit * tanh(x / limit)."""

    name = "smooth.cap"
    x, limit = irdl.operand_def(AnyFloat), irdl.prop_def(FloatAttr)
    result = irdl.result_def(AnyFloat)


class LowerCap(rewrite.RewritePattern):
    @rewrite.op_type_rewrite_pattern
    def match_and_rewrite(self, op: CapOp, rewriter: rewrite.PatternRewriter) -> None:
        limit = arith.ConstantOp(op.limit)
        ratio = arith.DivfOp(op.x, limit)
        tanh = math.TanhOp(ratio.result)
        rewriter.replace(op, [limit, ratio, tanh, arith.MulfOp(tanh, limit)])


@dataclass(frozen=True)
class CapScoresPass(ModulePass):
    name = "cap-scores"
    limit: float = 30.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in list(op.walk()):
            if isinstance(attention, flex.AttentionOp):
                block = attention.score_mod.block
                (score,) = block.last_op.operands
                limit = {"limit": FloatAttr(self.limit, score.type)}
                cap = CapOp.create(
                    operands=[score], result_types=[score.type], properties=limit
                )
                block.insert_op_before(cap, block.last_op)
                block.last_op.operands[0] = cap.result
        rewrite.PatternRewriteWalker(LowerCap()).rewrite_module(op)


PLUG_IN = Universe(
    all_dialects={"smooth": lambda: Dialect("smooth", [CapOp])},
    all_passes={"cap-scores": lambda: CapScoresPass},
)
