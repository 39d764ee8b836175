"""`tile-register-products`: products whose sums stay in a machine's registers.

1. `tile.dot` becomes `tile.register_product`, a block of rows and vectors at a time
   that fits the machine's registers. Onto zeros it has no accumulator; its count is
   that of the inner dimension.
2. A left operand that is loaded for products alone, and for each of their runs anew, is
   not loaded: products read it where it lies. What lies beyond the extents of such a
   load must be unspecified: then it is not computed with. Were it 0, it would have to
   be multiplied with what may be infinite.
3. A left operand in fp16 is read in place only if an instruction widens it.
4. What a loop reads in place along a counted dimension is followed by what its next
   iteration reads: `next` says where, so that it comes in time from farther caches
   (fp32, head dim 64, 8,192 keys: 87 % of the FMA peak in place of 71 %).
5. The kernel says how wide the vectors are.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    FixedBitwidthType,
    Float16Type,
    IntegerAttr,
    ModuleOp,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import VECTOR_BYTES, RegisterTileAttr, element_of, shape_of
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.passes.refusal import refuse
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.vector_machine import (
    MACHINES,
    MachineName,
    VectorMachine,
)
from flexc.passes.tidy import erase_dead
from flexc.passes.tile.tile_access import is_zero


def register_tile(machine: VectorMachine, type_: Attribute) -> RegisterTileAttr:
    """The block of a product of this type: narrow results have more rows in it."""
    element, (rows, columns) = tile.element_of(type_), shape_of(type_)
    assert isinstance(element, FixedBitwidthType)
    vectors = min(machine.vectors, -(-columns // machine.lanes(element.bitwidth)))
    fitting = machine.register_rows * machine.vectors // vectors
    return RegisterTileAttr(min(rows, fitting), vectors)


def is_zeros(value: SSAValue) -> bool:
    """Whether a tile is full of zeros."""
    return isinstance(value.owner, tile.FullOp) and is_zero(value.owner.value)


def runs_as_often(load: Operation, user: Operation) -> bool:
    """Whether no loop runs a load's user more often than the load."""
    parent = user.parent_op()
    while user.parent_block() is not load.parent_block():
        if not isinstance(parent, scf.IfOp):
            return False
        user, parent = parent, parent.parent_op()
    return True


def feeds_products_alone(load: tile.LoadStridedOp) -> bool:
    """Whether a tile is only ever the left operand of products that run as often."""
    return all(
        isinstance(use.operation, tile.DotOp)
        and use.index == 0
        and runs_as_often(load, use.operation)
        for use in load.result.uses
    )


def is_whole(extent: SSAValue, size: int) -> bool:
    """Whether an extent is known to hold all of a tile's dimension."""
    number = constant_of(extent)
    return number is not None and number >= size


def counts_of(load: tile.LoadStridedOp) -> list[SSAValue | None] | None:
    """How many rows and columns are read, None for all; None if others are zeros."""
    counts: list[SSAValue | None] = []
    sizes = shape_of(load.result.type)
    for dim, (extent, size) in enumerate(zip(load.extents, sizes, strict=True)):
        whole = is_whole(extent, size)
        if not whole and dim != load.counted_dim:
            return None
        counts.append(None if whole else extent)
    return counts


def is_readable(machine: VectorMachine, load: tile.LoadStridedOp) -> bool:
    """Whether a machine widens the elements of a tensor as it reads them."""
    assert isa(load.tensor.type, TensorType[Attribute])
    is_half = isinstance(load.tensor.type.element_type, Float16Type)
    return machine.widens_half or not is_half


def is_in_loop(op: Operation) -> bool:
    """Whether a loop runs an op."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, scf.ForOp):
        parent = parent.parent_op()
    return parent is not None


def place_of_next(load: tile.LoadStridedOp, code: ScalarCode) -> SSAValue | None:
    """How much further the next block of a loop lies; 0 if this one is the last."""
    dim = load.counted_dim
    if dim is None or not is_in_loop(load):
        return None
    size, count = shape_of(load.result.type)[dim], load.extents[dim]
    further = code.mul(load.strides[dim], code.const(size, i64), "further")
    is_full = code.insert(arith.CmpiOp(count, code.const(size), "eq"), "is_full")
    return code.insert(arith.SelectOp(is_full, further, code.const(0, i64)), "next")


@dataclass(frozen=True)
class DotInRegisters(RewritePattern):
    """tile.dot -> tile.register_product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        if element_of(op.rhs.type) != element_of(op.result.type):
            refuse(op, "expects an rhs of the result's type: run tile-widen-floats")
        product = self.in_place(op) or tile.RegisterProductOp(
            op.lhs, op.rhs, *self.rest(op), inner=op.count
        )
        product.result.name_hint = op.result.name_hint
        rewriter.replace(op, product)

    def in_place(self, op: tile.DotOp) -> tile.RegisterProductOp | None:
        """A product that reads its left operand where it lies, if it may."""
        load = op.lhs.owner
        if not isinstance(load, tile.LoadStridedOp) or not feeds_products_alone(load):
            return None
        counts = counts_of(load)
        if counts is None or not is_readable(self.machine, load):
            return None
        rows, inner = counts
        # A product that sums over more than was read would read beyond it.
        if inner is not None and op.count not in (None, inner):
            return None
        return tile.RegisterProductOp(
            load.tensor,
            op.rhs,
            *self.rest(op),
            base=load.base,
            strides=load.strides,
            rows=rows,
            inner=op.count if inner is None else inner,
            next=place_of_next(load, ScalarCode(InsertPoint.before(op))),
        )

    def rest(
        self, op: tile.DotOp
    ) -> tuple[SSAValue | None, Attribute, RegisterTileAttr]:
        """Accumulator, type and register tile."""
        acc = None if is_zeros(op.acc) else op.acc
        return acc, op.result.type, register_tile(self.machine, op.result.type)


@dataclass(frozen=True)
class TileRegisterProductsPass(ModulePass):
    """Keep the sums of products in the registers of a machine."""

    name = "tile-register-products"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        machine = MACHINES[self.machine]
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                kernel.attributes[VECTOR_BYTES] = IntegerAttr(machine.vector_bytes, i32)
        PatternRewriteWalker(
            DotInRegisters(machine), apply_recursively=False
        ).rewrite_module(op)
        erase_dead(op.body)
