"""`tile-widen-floats`: compute with 32-bit floats where memory holds 16-bit floats.

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
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex, tile
from flexc.dialects.tile import TileType, shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tidy import erase_dead
from flexc.passes.tile.map_builder import build_map


def is_narrow(value: SSAValue) -> bool:
    """Return True if a value is a tile of 16-bit floats."""
    type_ = value.type
    return isinstance(type_, TileType) and isinstance(
        type_.element_type, BFloat16Type | Float16Type
    )


def rounding_of(body: Region) -> arith.TruncFOp | None:
    """Return the op that rounds the only value that a map's region yields, or None."""
    last = body.block.last_op
    assert isinstance(last, flex.YieldOp)
    owner = last.values[0].owner
    if len(last.values) != 1 or not isinstance(owner, arith.TruncFOp):
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


def loaded(value: SSAValue, code: ScalarCode) -> SSAValue | None:
    """Return a 32-bit tile of the elements that `value` loads, or None."""
    op = value.owner
    if not isinstance(op, tile.LoadStridedOp):
        return None
    type_ = TileType(f32, shape_of(op.result.type))
    wide = tile.LoadStridedOp(
        op.tensor, op.base, op.strides, op.extents, type_, op.counted_dim
    )
    return code.insert(wide, value.name_hint)


def widened(value: SSAValue) -> SSAValue:
    """Return `value` as a tile of 32-bit floats, defined right after `value`."""
    op = value.owner
    point = InsertPoint.at_start(op) if isinstance(op, Block) else InsertPoint.after(op)
    code = ScalarCode(point)
    wide = unrounded(value, code) or loaded(value, code)
    if wide is not None:
        return wide
    shape = shape_of(value.type)

    def body(code: ScalarCode, x: SSAValue) -> SSAValue:
        return code.insert(arith.ExtFOp(x, f32))

    name = f"{value.name_hint or 'tile'}_f32"
    return build_map(code, shape, [(value, range(len(shape)))], body, name)


class WidenProduct(RewritePattern):
    """A pattern that widens the operands of a product to 32-bit floats."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
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
        last = op.body.block.last_op
        assert isinstance(last, flex.YieldOp)
        args = op.body.block.args
        if len(last.values) != 1 or last.values[0] not in args:
            return
        source = op.inputs[args.index(last.values[0])]
        if source.type == op.results[0].type:
            rewriter.replace(op, [], [source])


@dataclass(frozen=True)
class TileWidenFloatsPass(ModulePass):
    """Compute with 32-bit floats where memory holds 16-bit floats."""

    name = "tile-widen-floats"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, WidenProduct(), StoreUnrounded())
        rewrite(op, IdentityMap())
        erase_dead(op.body)


def rewrite(module: ModuleOp, *patterns: RewritePattern) -> None:
    """Apply patterns once to every op."""
    applier = GreedyRewritePatternApplier(list(patterns))
    PatternRewriteWalker(applier, apply_recursively=False).rewrite_module(module)
