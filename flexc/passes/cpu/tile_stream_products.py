"""`tile-stream-products`: products with fewer rows than a vector read memory in place.

1. `tile.dot` whose left operand has fewer rows than a vector has lanes, and whose right
   one is loaded for such products alone, and for each of their runs anew, becomes
   `tile.stream_product`: what is loaded, or its transpose, is read where it lies.
   Elements of its rows must lie side by side, and what is beyond the extents of rows
   must be unspecified.
2. Rows are fetched some kilobytes before they are read.

To transpose a block of memory, or to copy it, costs more than few rows do. All other
products are left to `tile-register-products`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import RegisterTileAttr, shape_of
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.passes.sizes.vector_machine import (
    MACHINES,
    MachineName,
    VectorMachine,
)
from flexc.passes.tidy import erase_dead
from flexc.passes.tile.tile_register_products import (
    is_whole,
    is_zeros,
    runs_as_often,
)

AHEAD = 1 << 13
"""Bytes that are on their way.

Of fp32, 4 rows, head dim 64 and 8,192 keys (Zen 5, one core): 18 GB/s without, 24 with
2 KB to 16 KB."""

ROWS = 4
"""Rows of a block: with 8, half as many rows of memory are read at a time."""


def bits_of(type_: Attribute) -> int:
    """The width of the elements of a tile or tensor."""
    is_tensor = isa(type_, TensorType[Attribute])
    element = type_.element_type if is_tensor else tile.element_of(type_)
    assert isinstance(element, FixedBitwidthType)
    return element.bitwidth


def power_of_2_up_to(n: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << n.bit_length() - 1


def stream_tile(
    machine: VectorMachine, type_: Attribute, transposed: bool
) -> RegisterTileAttr:
    """The block of a product of this type."""
    rows, columns = shape_of(type_)
    lanes = machine.lanes(bits_of(type_))
    most = min(ROWS, lanes)
    together = min(most, 2 * power_of_2_up_to(rows) if rows & rows - 1 else rows)
    if transposed:
        return RegisterTileAttr(together, lanes // together)
    room = power_of_2_up_to(machine.register_rows * machine.vectors // together)
    return RegisterTileAttr(together, min(room, -(-columns // lanes)))


def feeds_few_rows(load: tile.LoadStridedOp, machine: VectorMachine) -> bool:
    """Whether a tile is only ever the right operand of products with few rows."""
    return all(
        isinstance(use.operation, tile.DotOp)
        and use.index == 1
        and has_few_rows(use.operation, machine)
        and runs_as_often(load, use.operation)
        for use in load.result.uses
    )


def has_few_rows(op: tile.DotOp, machine: VectorMachine) -> bool:
    """Whether the rows of a product would fill no vector."""
    lanes = machine.lanes(bits_of(op.result.type))
    return shape_of(op.result.type)[0] < lanes


@dataclass(frozen=True)
class Rows:
    """How rows of memory lie that a product reads."""

    stride: SSAValue
    count: SSAValue
    transposed: bool

    @classmethod
    def of(cls, load: tile.LoadStridedOp) -> Rows | None:
        """Of a loaded tile, if it is of rows, or of columns, whose elements lie side by
        side and of which none is but partly there."""
        sizes = shape_of(load.result.type)
        for dim in (0, 1):
            inner = 1 - dim
            if constant_of(load.strides[inner]) != 1:
                continue
            if not is_whole(load.extents[inner], sizes[inner]):
                continue
            extent = load.extents[dim]
            if load.counted_dim == dim or constant_of(extent) == sizes[dim]:
                return cls(load.strides[dim], extent, dim == 1)
        return None


@dataclass(frozen=True)
class DotOfStream(RewritePattern):
    """tile.dot -> tile.stream_product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        load = op.rhs.owner
        if not isinstance(load, tile.LoadStridedOp):
            return
        if not feeds_few_rows(load, self.machine):
            return
        rows, acc = Rows.of(load), None if is_zeros(op.acc) else op.acc
        if rows is None:
            return
        if rows.transposed and (acc is not None or op.count is not None):
            return
        # A product that sums over more than was read would read beyond it.
        if load.counted_dim == 0 and op.count not in (None, rows.count):
            return
        count = rows.count if op.count is None else op.count
        size = shape_of(load.result.type)[0 if rows.transposed else 1]
        row_bytes = size * bits_of(load.tensor.type) // 8
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
    """Let products with few rows read their right operand where it lies."""

    name = "tile-stream-products"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = DotOfStream(MACHINES[self.machine])
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
        erase_dead(op.body)
