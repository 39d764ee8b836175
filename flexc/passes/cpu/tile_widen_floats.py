"""Choose the floats of products: 16-bit floats in pairs, or widened to 32 bits.

`tile-pack-operands`: pack the rhs of products that a machine has for 16-bit floats.

1. A `tile.dot` gets an rhs in the layout `#tile.pairs`. A tile that is loaded for
   products alone is loaded so. Any other tile, unrounded if it was rounded only to be
   multiplied, is packed where the product needs it.
2. Products with few rows, which read memory as it lies, and products whose inner
   dimension is odd stay as they are.

`tile-widen-floats`: compute with 32-bit floats where memory holds 16-bit floats.

A machine without 16-bit arithmetic multiplies matrices of 32-bit floats. A load widens
values once for each block, or a product that reads in place widens them. A store rounds
values. A value that was rounded only to be multiplied is no longer rounded.

1. If a 16-bit operand of a product was loaded, or was rounded from a tile of 32-bit
   floats, that tile takes its place. Any other operand is widened by a map.
2. A store of rounded values stores the unrounded values: the store itself rounds.
3. A map that only yields an operand is replaced by the operand.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import BFloat16Type, Float16Type, ModuleOp, f32
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import tile
from flexc.dialects.flex import element_type
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import PairsAttr, TileType, element_of, shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.cpp import MACHINES, VectorMachine
from flexc.passes.targets.target import MachineName
from flexc.passes.tile.map_builder import build_map
from flexc.passes.tile.tile_values import after


def is_narrow(value: SSAValue) -> bool:
    """Return True if a value is a tile of 16-bit floats."""
    type_ = value.type
    return isinstance(type_, TileType) and isinstance(
        type_.element_type, BFloat16Type | Float16Type
    )


def rounding_of(body: Region) -> arith.TruncFOp | None:
    """Return the op that rounds the only value that a map's region yields, or None."""
    values = yielded(body.block)
    owner = values[0].owner
    if len(values) != 1 or not isinstance(owner, arith.TruncFOp):
        return None
    return owner if owner.input.type == f32 else None


def unrounded(value: SSAValue, code: ScalarCode) -> SSAValue | None:
    """Return a tile of the 32-bit floats that a map rounds to `value`, or None."""
    op = value.owner
    if not isinstance(op, tile.MapOp) or rounding_of(op.body) is None:
        return None
    body = op.body.clone()
    rounding, last = rounding_of(body), body.block.last_op
    assert rounding is not None
    assert last is not None
    last.operands = [rounding.input]
    spans = [op.span(i) for i in range(len(op.inputs))]
    wide = tile.MapOp(op.inputs, spans, [TileType(f32, op.shape)], body)
    return code.insert(wide, value.name_hint)


def loaded(value: SSAValue, type_: TileType, code: ScalarCode) -> SSAValue | None:
    """Return a tile of this type with the elements that `value` loads, or None."""
    op = value.owner
    if not isinstance(op, tile.LoadStridedOp):
        return None
    wide = tile.LoadStridedOp(
        op.tensor, op.base, op.strides, op.extents, type_, op.counted_dim
    )
    return code.insert(wide, value.name_hint)


def widened(value: SSAValue) -> SSAValue:
    """Return `value` as a tile of 32-bit floats, defined right after `value`."""
    code, shape = ScalarCode(after(value)), shape_of(value.type)
    wide = unrounded(value, code) or loaded(value, TileType(f32, shape), code)
    if wide is not None:
        return wide

    def body(code: ScalarCode, x: SSAValue) -> SSAValue:
        return code.insert(arith.ExtFOp(x, f32))

    name = f"{value.name_hint or 'tile'}_f32"
    return build_map(code, shape, [(value, range(len(shape)))], body, name)


def holds(load: tile.LoadStridedOp) -> bool:
    """Return True if memory holds a tile's elements in its own type."""
    return element_type(load.tensor) == element_of(load.result.type)


def packed(value: SSAValue, op: tile.DotOp) -> SSAValue:
    """Return the rhs of a product as a tile that is packed in pairs."""
    assert isinstance(value.type, TileType)
    type_ = value.type.with_layout(PairsAttr())
    if isinstance(value.owner, tile.LoadStridedOp) and holds(value.owner):
        found = loaded(value, type_, ScalarCode(after(value)))
        assert found is not None
        return found
    code = ScalarCode(InsertPoint.before(op))
    source = unrounded(value, code) or value
    return code.insert(tile.PackOp(source, type_, op.count), value.name_hint)


@dataclass(frozen=True)
class PackProduct(RewritePattern):
    """A pattern that packs the rhs of a product."""

    machine: VectorMachine

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        if self.is_packable(op):
            op.operands[1] = packed(op.rhs, op)
            rewriter.notify_op_modified(op)

    def is_packable(self, op: tile.DotOp) -> bool:
        """Return True if the machine multiplies the operands as they are."""
        products = self.machine.packed
        if products is None or element_of(op.result.type) != f32:
            return False
        lhs, rhs = op.lhs.type, op.rhs.type
        has_pairs = shape_of(rhs)[0] % 2 == 0
        is_large = min(shape_of(op.result.type)) >= self.machine.lanes(32)
        elements = {str(element_of(lhs)), str(element_of(rhs))}
        return elements == {products.element} and has_pairs and is_large


@dataclass(frozen=True)
class TilePackOperandsPass(ModulePass):
    """Pack the rhs of products that a machine has for 16-bit floats."""

    name = "tile-pack-operands"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, PackProduct(MACHINES[self.machine]))
        rewrite(op, IdentityMap())
        region_dce(op.body)


class WidenProduct(RewritePattern):
    """A pattern that widens the operands of a product to 32-bit floats."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        if tile.is_packed(op.rhs.type):
            return
        # If both operands are the same value, the dict has one entry and one widening.
        operands = dict.fromkeys((op.lhs, op.rhs))
        narrow = {v: widened(v) for v in operands if is_narrow(v)}
        if narrow:
            op.operands = [narrow.get(v, v) for v in op.operands]
            rewriter.notify_op_modified(op)


class StoreUnrounded(RewritePattern):
    """A pattern that rewrites store(map { truncf x }) to store(map { x })."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: tile.StoreStridedOp, rewriter: PatternRewriter
    ) -> None:
        wide = unrounded(op.value, ScalarCode(InsertPoint.before(op)))
        if wide is not None:
            op.operands[0] = wide
            rewriter.notify_op_modified(op)


class IdentityMap(RewritePattern):
    """A pattern that rewrites map(x) { x } to x."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.MapOp, rewriter: PatternRewriter) -> None:
        values, args = yielded(op.body.block), op.body.block.args
        if len(values) != 1 or values[0] not in args:
            return
        source = op.inputs[args.index(values[0])]
        if source.type == op.results[0].type:
            rewriter.replace(op, [], [source])


@dataclass(frozen=True)
class TileWidenFloatsPass(ModulePass):
    """Compute with 32-bit floats where memory holds 16-bit floats."""

    name = "tile-widen-floats"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, WidenProduct(), StoreUnrounded())
        rewrite(op, IdentityMap())
        region_dce(op.body)


def rewrite(module: ModuleOp, *patterns: RewritePattern) -> None:
    """Apply patterns once to every op."""
    applier = GreedyRewritePatternApplier(list(patterns))
    PatternRewriteWalker(applier, apply_recursively=False).rewrite_module(module)
