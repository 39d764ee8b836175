"""`flex-fold-heads`: turn the query heads of a group into rows of one head.

Query heads that share a key head, `group` of them at a time, become rows of one head:

1. A `flex.attention` of H heads and `queries` queries gets H / `group` heads, and
   `group * queries` rows. The types state this number of rows. Row r of head n is query
   r % queries of head n * group + r // queries; mods receive this query and this head.
2. The function takes a query and returns results of these shapes. The caller passes
   views of its tensors.

With a group of 1 the only change is that the types state the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode

ROWS = 2
"""The dimension of the rows in the query and in the results."""


def with_rows(type_: Attribute, rows: int) -> Attribute:
    """Return a tensor type with another number of rows."""
    assert isa(type_, TensorType[Attribute])
    shape = list(type_.get_shape())
    shape[ROWS] = rows
    return TensorType(type_.element_type, shape, type_.encoding)


@dataclass(frozen=True)
class FlexFoldHeadsPass(ModulePass):
    """A pass that turns query heads of a key head into rows of one head."""

    name = "flex-fold-heads"

    group: int = 1
    queries: int = 1

    @property
    def rows(self) -> int:
        """The number of rows of a folded head."""
        return self.group * self.queries

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [o for o in op.walk() if isinstance(o, FuncOp)]:
            ops = [o for o in function.walk() if isinstance(o, flex.AttentionOp)]
            for attention in ops:
                self.fold(attention)
            if len(function.body.blocks) > 1:
                refuse(function, "flex-fold-heads expects a function of one block")
            if ops:
                block = function.body.block
                last = block.last_op
                assert last is not None
                function.function_type = FunctionType.from_lists(
                    block.arg_types, last.operand_types
                )

    def fold(self, op: flex.AttentionOp) -> None:
        """Set the number of rows in types and facts, and fold the positions of mods."""
        for value in (op.query, *op.results):
            type_ = with_rows(value.type, self.rows)
            Rewriter.replace_value_with_new_type(value, type_)
        op.properties["q_len_multiple"] = IntegerAttr(self.rows, i64)
        if self.group > 1:
            for region in (op.score_mod, op.mask_mod):
                self.fold_positions(region)

    def fold_positions(self, region: Region) -> None:
        """Compute a mod's query head and query from a key head and a row."""
        block = region.block
        skip = 1 if block.args[0].type not in INDEX_ARGS else 0
        head, row = block.args[skip + 1], block.args[skip + 2]
        users = {use.operation for arg in (head, row) for use in arg.uses}
        if not users:
            return
        assert block.first_op is not None
        code = ScalarCode(InsertPoint.before(block.first_op))
        place: SSAValue = row
        query = code.const(0)
        if self.queries > 1:
            queries = code.const(self.queries)
            place = code.div(row, queries, "place")
            query = code.rem(row, queries, "query")
        first = code.mul(head, code.const(self.group))
        folded = code.add(first, place, "query_head")
        for arg, value in ((head, folded), (row, query)):
            for use in list(arg.uses):
                if use.operation in users:
                    use.operation.operands[use.index] = value
