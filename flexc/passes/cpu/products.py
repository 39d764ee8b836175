"""Passes that choose how a CPU multiplies matrices.

`tile-stream-products`: products with fewer rows than a vector has lanes read the rhs in
place.

1. A `tile.dot` becomes a `tile.stream_product` if its lhs has fewer rows than a vector
   has lanes, and its rhs is loaded for such products alone, as often as they run. The
   product reads the loaded tile, or its transpose, from memory. The elements of each
   row must be adjacent, and elements beyond the extent of rows must be unspecified.
2. Rows are prefetched some kilobytes before they are read.

Transposing or copying a block of memory costs more than a product with few rows.

`tile-register-products`: sums of other products stay in a machine's registers.

1. A `tile.dot` becomes a `tile.register_product`, which computes a block of rows and
   vectors at a time that fits the machine's registers. A product onto zeros has no
   accumulator. The product's count limits the inner dimension.
2. An lhs that is loaded for products alone, as often as they run, is not loaded:
   products read it in place. Elements beyond the extents of such a load must be
   unspecified, so that the product can skip them. Zeros there would have to be
   multiplied with factors that may be infinite.
3. An lhs of 8 bits is not read in place. One in fp16 is only if the machine has an
   instruction to widen it, and the lhs of a packed rhs only if the elements of its rows
   are adjacent.
4. For a read in place along a counted dimension in a loop, the operand `next` is the
   distance to the block of the next iteration, so that the block can be prefetched.
5. Rows of a head that a loop reads in place become `tile.near_rows`: those that lie
   apart are copied for later programs of a thread.
6. An lhs that a loop transposes for a packed rhs gets the layout `#tile.kept`: programs
   of a thread find the blocks that earlier ones transposed.
7. The kernel gets an attribute with the width of the vectors.

`tile-add-products`: products that are only added to memory are summed there. A
`tile.add_strided` of a `tile.register_product` becomes a `tile.add_register_product`,
which reads a block of the sum into registers and writes it back, without a tile of the
product. It computes only the rows that are added. The pass applies if the rows in
memory are whole vectors of adjacent elements.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import parents
from flexc.dialects.tile import (
    VECTOR_BYTES,
    KeptAttr,
    RegisterTileAttr,
    TileType,
    element_of,
    shape_of,
)
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.cpp import MACHINES, VectorMachine
from flexc.passes.targets.target import MachineName, power_of_2_up_to
from flexc.passes.tile.tile_access import element_width, is_zeros


def counts_of_sums(rhs: SSAValue) -> set[SSAValue | None]:
    """Return the numbers of terms of the products with an rhs."""
    users = (use.operation for use in rhs.uses)
    return {
        u.count if isinstance(u, tile.DotOp) else getattr(u, "inner", None)
        for u in users
    }


def register_tile(machine: VectorMachine, op: tile.DotOp) -> RegisterTileAttr:
    """Return the register tile of a product; narrow results get more rows."""
    element, (rows, columns) = element_of(op.result.type), shape_of(op.result.type)
    assert isinstance(element, FixedBitwidthType)
    most_rows, most_vectors = machine.register_rows, machine.vectors
    wide_rows, depth = machine.wide_rows, 1
    if tile.is_packed(op.rhs.type) and (packed := machine.packed) is not None:
        wide_rows, depth = None, 2
        # A matrix unit clears the rows of rhs after the counted terms.
        if op.count is None or counts_of_sums(op.rhs) == {op.count}:
            most_rows, most_vectors = packed.rows, packed.vectors
            wide_rows, depth = packed.wide_rows, packed.depth
    vectors = -(-columns // machine.lanes(element.bitwidth))
    # An rhs of two steps stays in the registers of a matrix unit.
    stays = depth > 2 and shape_of(op.rhs.type)[0] <= 2 * depth
    if wide_rows and not stays and vectors % (2 * most_vectors) == 0:
        most_rows, most_vectors = wide_rows, 2 * most_vectors
    vectors = min(most_vectors, vectors)
    fitting = most_rows * most_vectors // vectors
    return RegisterTileAttr(min(rows, fitting), vectors, depth)


def runs_as_often(load: Operation, user: Operation) -> bool:
    """Return True if no loop runs a load's user more often than the load."""
    parent = user.parent_op()
    while user.parent_block() is not load.parent_block():
        if not isinstance(parent, scf.IfOp):
            return False
        user, parent = parent, parent.parent_op()
    return True


def feeds_products_alone(load: tile.LoadStridedOp) -> bool:
    """Return True if all uses of a load are as lhs of products that run as often."""
    return all(
        isinstance(use.operation, tile.DotOp)
        and use.index == 0
        and runs_as_often(load, use.operation)
        for use in load.result.uses
    )


def is_whole(extent: SSAValue, size: int) -> bool:
    """Return True if an extent is known to cover all of a tile's dimension."""
    number = int_constant(extent)
    return number is not None and number >= size


def counts_of(load: tile.LoadStridedOp) -> list[SSAValue | None] | None:
    """Return the counts of rows and columns that are read, each None for all.

    Return None if a dimension that is not counted is cut by its extent.
    """
    counts: list[SSAValue | None] = []
    sizes = shape_of(load.result.type)
    for dim, (extent, size) in enumerate(zip(load.extents, sizes, strict=True)):
        whole = is_whole(extent, size)
        if not whole and dim != load.counted_dim:
            return None
        counts.append(None if whole else extent)
    return counts


def is_readable(machine: VectorMachine, load: tile.LoadStridedOp) -> bool:
    """Return True if the machine can widen a tensor's elements while it reads them.

    To widen elements of 8 bits one by one takes longer than a product.
    """
    assert isa(load.tensor.type, TensorType[Attribute])
    if element_width(load.tensor.type) < 16:
        return False
    is_half = isinstance(load.tensor.type.element_type, Float16Type)
    return machine.widens_half or not is_half


def loops_around(op: Operation) -> int:
    """Return the number of loops that run an op."""
    return sum(isinstance(parent, scf.ForOp) for parent in parents(op))


def place_of_next(
    load: tile.LoadStridedOp, strides: Sequence[SSAValue], code: ScalarCode
) -> SSAValue | None:
    """Return the distance to the next iteration's block, 0 in the last iteration.

    `strides` are those with which the block is read. Return None outside of loops, for
    a load without a counted dimension, and for rows of pages, whose next block lies
    elsewhere.
    """
    dim, collected = load.counted_dim, isinstance(load.tensor.owner, tile.CollectOp)
    if dim is None or collected or not loops_around(load):
        return None
    size, count = shape_of(load.result.type)[dim], load.extents[dim]
    further = code.mul(strides[dim], code.const(size, i64), "further")
    is_full = code.insert(arith.CmpiOp(count, code.const(size), "eq"), "is_full")
    return code.select(is_full, further, code.const(0, i64), "next")


Place = tuple[SSAValue, SSAValue, Sequence[SSAValue]]
"""A tensor, and the base and strides of a tile within it."""


def near_place(load: tile.LoadStridedOp, code: ScalarCode) -> Place:
    """Return the place of a load's elements, near each other if a loop reads rows.

    Rows are whole and counted, and their number is a factor of the last term of the
    load's base.
    """
    tensor, place = load.tensor, (load.tensor, load.base, load.strides)
    dim, base = load.counted_dim, load.base.owner
    if dim is None or not isinstance(base, arith.AddiOp) or not loops_around(load):
        return place
    assert isa(tensor.type, TensorType[Attribute])
    sizes, columns = shape_of(load.result.type), tensor.type.get_shape()[-1]
    stride, unit, offset = load.strides[dim], load.strides[1 - dim], base.rhs.owner
    if not isinstance(offset, arith.MuliOp) or offset.rhs != stride:
        return place
    is_whole = sizes[1 - dim] == columns and int_constant(unit) == 1
    if not is_whole or not isinstance(tensor.owner, Block):
        return place
    op = tile.NearRowsOp(
        *(tensor, base.lhs, offset.lhs, stride, load.extents[dim]),
        (sizes[dim], columns),
        repeated=loops_around(load) > 1,
    )
    code.builder.insert(op)
    hint = tensor.name_hint or "tensor"
    op.rows.name_hint, op.step.name_hint = f"{hint}_rows", f"{hint}_step"
    strides = (unit, op.step) if dim else (op.step, unit)
    return op.rows, code.const(0, i64), strides


def is_kept(op: tile.DotOp) -> bool:
    """Return True if the lhs of a packed rhs is transposed in a loop.

    It must lie in an argument: rows that are collected from pages have one place for
    all blocks.
    """
    load = op.lhs.owner
    return (
        isinstance(load, tile.LoadStridedOp)
        and shape_of(load.result.type)[1] % tile.TILE_DEPTH == 0
        and tile.is_packed(op.rhs.type)
        and isinstance(load.tensor.owner, Block)
        and int_constant(load.strides[0]) == 1
        and loops_around(load) > 0
        and feeds_products_alone(load)
    )


def kept(lhs: SSAValue) -> SSAValue:
    """Return a load with the layout of blocks that a thread keeps."""
    assert isinstance(lhs.type, TileType)
    return Rewriter.replace_value_with_new_type(lhs, lhs.type.with_layout(KeptAttr()))


@dataclass(frozen=True)
class DotInRegisters(RewritePattern):
    """A pattern that rewrites tile.dot to tile.register_product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        is_wide = element_of(op.rhs.type) == element_of(op.result.type)
        if not is_wide and not tile.is_packed(op.rhs.type):
            refuse(op, "expects an rhs of the result's type: run tile-widen-floats")
        if tile.is_packed(op.rhs.type) and self.machine.packed is None:
            refuse(op, f"{self.machine.name} has no products of packed operands")
        product = self.in_place(op)
        if product is None:
            lhs = kept(op.lhs) if is_kept(op) else op.lhs
            product = tile.RegisterProductOp(
                lhs, op.rhs, *self.rest(op), inner=op.count
            )
        product.result.name_hint = op.result.name_hint
        rewriter.replace(op, product)

    def in_place(self, op: tile.DotOp) -> tile.RegisterProductOp | None:
        """Return a product that reads its lhs in place, or None if it may not."""
        load = op.lhs.owner
        if not isinstance(load, tile.LoadStridedOp) or not feeds_products_alone(load):
            return None
        counts = counts_of(load)
        if counts is None or not is_readable(self.machine, load):
            return None
        if tile.is_packed(op.rhs.type) and int_constant(load.strides[1]) != 1:
            return None
        rows, inner = counts
        rest = self.rest(op)
        # Prefetches of a whole block delay the loads of a matrix unit.
        is_prefetched = not rest[-1].is_of_unit
        # A product that sums over more than was read would read beyond it.
        if inner is not None and op.count not in (None, inner):
            return None
        code = ScalarCode(InsertPoint.before(op))
        tensor, base, strides = near_place(load, code)
        return tile.RegisterProductOp(
            tensor,
            op.rhs,
            *rest,
            base=base,
            strides=strides,
            rows=rows,
            inner=op.count if inner is None else inner,
            next=place_of_next(load, strides, code) if is_prefetched else None,
        )

    def rest(
        self, op: tile.DotOp
    ) -> tuple[SSAValue | None, Attribute, RegisterTileAttr]:
        """Return the accumulator, the type and the register tile."""
        acc = None if is_zeros(op.acc) else op.acc
        return acc, op.result.type, register_tile(self.machine, op)


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
        region_dce(op.body)


AHEAD = 1 << 13
"""The number of bytes that are prefetched ahead of their use."""


STREAM_ROWS = 4
"""The most rows of a stream product's block.

More rows would leave registers for fewer rows of memory at a time.
"""


def stream_tile(
    machine: VectorMachine, type_: Attribute, transposed: bool
) -> RegisterTileAttr:
    """Return the register tile of a stream product with this result type."""
    rows, columns = shape_of(type_)
    lanes = machine.lanes(element_width(type_))
    most = min(STREAM_ROWS, lanes)
    together = min(most, 2 * power_of_2_up_to(rows) if rows & rows - 1 else rows)
    if transposed:
        return RegisterTileAttr(together, lanes // together)
    room = power_of_2_up_to(machine.register_rows * machine.vectors // together)
    return RegisterTileAttr(together, min(room, -(-columns // lanes)))


def feeds_few_rows(load: tile.LoadStridedOp, machine: VectorMachine) -> bool:
    """Return True if all uses of a load are as rhs of products with few rows.

    Those products must run as often as the load.
    """
    return all(
        isinstance(use.operation, tile.DotOp)
        and use.index == 1
        and has_few_rows(use.operation, machine)
        and runs_as_often(load, use.operation)
        for use in load.result.uses
    )


def has_few_rows(op: tile.DotOp, machine: VectorMachine) -> bool:
    """Return True if a product has fewer rows than a vector has lanes."""
    lanes = machine.lanes(element_width(op.result.type))
    return shape_of(op.result.type)[0] < lanes


@dataclass(frozen=True)
class StreamedRows:
    """The rows of memory that a stream product reads."""

    stride: SSAValue
    count: SSAValue
    transposed: bool

    @classmethod
    def of(cls, load: tile.LoadStridedOp) -> StreamedRows | None:
        """Return the rows of a loaded tile, or of its transpose.

        Return None unless the elements of each row are adjacent and no row is cut.
        """
        sizes = shape_of(load.result.type)
        for dim in (0, 1):
            inner = 1 - dim
            if int_constant(load.strides[inner]) != 1:
                continue
            if not is_whole(load.extents[inner], sizes[inner]):
                continue
            extent = load.extents[dim]
            if load.counted_dim == dim or int_constant(extent) == sizes[dim]:
                return cls(load.strides[dim], extent, dim == 1)
        return None


@dataclass(frozen=True)
class DotOfStream(RewritePattern):
    """A pattern that rewrites tile.dot to tile.stream_product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        load = op.rhs.owner
        if not isinstance(load, tile.LoadStridedOp):
            return
        if not feeds_few_rows(load, self.machine):
            return
        rows, acc = StreamedRows.of(load), None if is_zeros(op.acc) else op.acc
        if rows is None:
            return
        if rows.transposed and (acc is not None or op.count is not None):
            return
        # A product that sums over more than was read would read beyond it.
        if load.counted_dim == 0 and op.count not in (None, rows.count):
            return
        count = rows.count if op.count is None else op.count
        size = shape_of(load.result.type)[0 if rows.transposed else 1]
        row_bytes = size * element_width(load.tensor.type) // 8
        product = tile.StreamProductOp(
            op.lhs,
            load.tensor,
            (load.base, rows.stride, count),
            acc,
            op.result.type,
            stream_tile(self.machine, op.result.type, rows.transposed),
            rows.transposed,
            max(1, AHEAD // row_bytes),
        )
        product.result.name_hint = op.result.name_hint
        rewriter.replace(op, product)


@dataclass(frozen=True)
class TileStreamProductsPass(ModulePass):
    """Let products with few rows read their rhs in place."""

    name = "tile-stream-products"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = DotOfStream(MACHINES[self.machine])
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
        region_dce(op.body)


@dataclass(frozen=True)
class AddProduct(RewritePattern):
    """A pattern that rewrites add_strided(register_product) to add_register_product."""

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
        # Do not move the product into a loop.
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
        """Return True if a product of tiles has no accumulator and one use."""
        is_new = product.acc is None and product.base is None
        return is_new and product.result.uses.get_length() == 1

    def is_whole(self, op: tile.AddStridedOp) -> bool:
        """Return True if the rows in memory are whole vectors of adjacent elements."""
        element, shape = element_of(op.value.type), shape_of(op.value.type)
        assert isinstance(element, FixedBitwidthType)
        lanes = self.machine.lanes(element.bitwidth)
        return (
            len(shape) == 2
            and shape[1] % lanes == 0
            and int_constant(op.strides[1]) == 1
        )


@dataclass(frozen=True)
class TileAddProductsPass(ModulePass):
    """Sum products in memory where they are only added to it."""

    name = "tile-add-products"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = AddProduct(MACHINES[self.machine])
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
