"""`tile-add-products`: products that are only added to memory are summed there.

`tile.add_strided` of a `tile.register_product` becomes `tile.add_register_product`: a
block of the sum is read into registers and written back, and no tile is made of it. Of
the product no more rows are computed than are added.

It applies where the rows of what is added to are whole vectors, of adjacent elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import tile
from flexc.dialects.tile import element_of, shape_of
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.passes.sizes.vector_machine import (
    MACHINES,
    MachineName,
    VectorMachine,
)


@dataclass(frozen=True)
class AddProduct(RewritePattern):
    """add_strided(register_product) -> add_register_product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: tile.AddStridedOp, rewriter: PatternRewriter
    ) -> None:
        product = op.value.owner
        if not isinstance(product, tile.RegisterProductOp):
            return
        if not (self.is_only_added(product) and self.is_whole(op)):
            return
        # Never in a loop that the product is not in.
        if product.parent is not op.parent:
            return
        add = tile.AddRegisterProductOp(
            op.memref,
            op.base,
            op.strides[0],
            product.lhs,
            product.rhs,
            product.register_tile,
            product.rows if op.count is None else op.count,
            product.inner,
        )
        rewriter.replace(op, add)
        rewriter.erase(product)

    def is_only_added(self, product: tile.RegisterProductOp) -> bool:
        """Whether a product of tiles is a sum of its own, and used once."""
        is_new = product.acc is None and product.base is None
        return is_new and product.result.uses.get_length() == 1

    def is_whole(self, op: tile.AddStridedOp) -> bool:
        """Whether rows of what is added to are vectors."""
        element, shape = element_of(op.value.type), shape_of(op.value.type)
        assert isinstance(element, FixedBitwidthType)
        lanes = self.machine.lanes(element.bitwidth)
        return (
            len(shape) == 2
            and shape[1] % lanes == 0
            and constant_of(op.strides[1]) == 1
        )


@dataclass(frozen=True)
class TileAddProductsPass(ModulePass):
    """Sum products where they are added to memory."""

    name = "tile-add-products"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = AddProduct(MACHINES[self.machine])
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
