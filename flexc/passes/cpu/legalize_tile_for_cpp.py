"""`legalize-tile-for-cpp`: turn tile accesses into strided accesses.

1. `tile.load`, `tile.store` and `tile.add_to` become strided accesses: a 64-bit base,
   and a stride and an extent for each dimension. Along a checked dimension, elements
   beyond the extent are out of range. Beyond a load's count, elements are unspecified.
   Beyond a store's count, elements are not read.
   Rows that lie in pages are collected first.
2. The transpose of a loaded tile becomes a load with exchanged strides. A store or
   addition of a transpose exchanges its strides likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import tile
from flexc.dialects.tile.schedule import SCHEDULE_OPS, SCHEDULE_TYPES
from flexc.errors import refuse
from flexc.passes.tile.tile_access import TileAccess, is_zero, static_stride
from flexc.passes.tile.tile_values import defined_values


@dataclass(frozen=True)
class StridedAccess(TileAccess):
    """The base, strides and extents of a tile within a tensor or memref."""

    def base(self) -> SSAValue:
        """Return the sum of the indices times their strides."""
        code, total = self.code, None
        for dim, index in enumerate(self.indices):
            if is_zero(index):
                continue
            term = code.int_cast(index, i64)
            term = code.mul(term, self.stride(dim), self.hint("offset"))
            total = term if total is None else code.add(total, term, self.hint("base"))
        return code.const(0, i64) if total is None else total

    def stride(self, dim: int) -> SSAValue:
        if (static := static_stride(self.tensor.type, dim)) is not None:
            return self.code.const(static, i64)
        return self.code.insert(
            tile.StrideOp(self.tensor, dim), self.hint(f"stride{dim}")
        )

    def strides(self) -> list[SSAValue]:
        return [self.stride(self.first_dim + i) for i in range(len(self.shape))]

    def extents(self, pages: SSAValue | None = None) -> list[SSAValue]:
        return [self.extent(i, pages) for i in range(len(self.shape))]

    def extent(self, i: int, pages: SSAValue | None = None) -> SSAValue:
        """Return the number of elements from the tile's start to the tensor's end.

        Along an unchecked dimension the extent is the tile's size. Rows that lie in
        `pages` end where the table ends.
        """
        dim, code = self.first_dim + i, self.code
        if i not in self.checked:
            return code.const(self.shape[i])
        start, size = self.indices[dim], self.end(i)
        if i == 0 and pages is not None:
            size = code.mul(code.insert(tile.DimOp(pages, 1), "pages"), size, "size")
        return size if is_zero(start) else code.sub(size, start, self.hint("left"))


class LoadToStrided(RewritePattern):
    """A pattern that rewrites tile.load to tile.load_strided."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.LoadOp, rewriter: PatternRewriter) -> None:
        if op.live is not None:
            refuse(op, "has live rows, which loads of C++ have none of: use triton")
        access, type_ = StridedAccess.of_load(op), op.result.type
        tensor, base, strides = op.tensor, access.base(), access.strides()
        extents = access.extents(op.pages)
        counted = None if op.count is None else 0
        if op.count is not None:
            extents[0] = op.count
        if op.pages is not None:
            tensor, base, strides = collected(access, op.pages, extents[0])
        load = tile.LoadStridedOp(tensor, base, strides, extents, type_, counted)
        load.result.name_hint = op.result.name_hint
        rewriter.replace(op, load)


def collected(
    access: StridedAccess, table: SSAValue, extent: SSAValue
) -> tuple[SSAValue, SSAValue, list[SSAValue]]:
    """Write the op that collects rows of pages; return a tensor, a base and strides."""
    code, (b, h, start, column) = access.code, access.indices
    head = replace(access, indices=[code.const(0), h, code.const(0), column])
    entries = StridedAccess(code, table, [b, code.const(0)], (), ()).base()
    most = access.shape[0]
    op = tile.CollectOp(
        access.tensor,
        head.base(),
        [access.stride(dim) for dim in (0, 2, 3)],
        table,
        entries,
        (start, code.min(extent, code.const(most)), most),
        access.size(0),
    )
    code.builder.insert(op)
    op.rows.name_hint, op.step.name_hint = access.hint("rows"), access.hint("step")
    return op.rows, code.const(0, i64), [op.step, code.const(1, i64)]


class StoreToStrided(RewritePattern):
    """A pattern that rewrites tile.store to tile.store_strided."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.StoreOp, rewriter: PatternRewriter) -> None:
        access = StridedAccess.of_store(op)
        strides, extents = access.strides(), access.extents()
        value, counted = op.value, None
        if op.count is not None:
            counted = len(extents) - 1
            extents[counted] = op.count
        if isinstance(value.owner, tile.TransposeOp):
            value, strides, extents = value.owner.input, strides[::-1], extents[::-1]
            counted = None if counted is None else len(extents) - 1 - counted
        base = access.base()
        store = tile.StoreStridedOp(value, op.memref, base, strides, extents, counted)
        rewriter.replace(op, store)


class AddToStrided(RewritePattern):
    """A pattern that rewrites tile.add_to to tile.add_strided."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.AddToOp, rewriter: PatternRewriter) -> None:
        if op.atomic is not None or op.checked.get_values():
            refuse(op, "is atomic or checked, which a CPU's kernels cannot do")
        access = StridedAccess.of_add(op)
        value, strides = op.value, access.strides()
        # A count is a number of rows of the result, so the op must keep its rows.
        if isinstance(value.owner, tile.TransposeOp) and op.count is None:
            value, strides = value.owner.input, strides[::-1]
        base = access.base()
        add = tile.AddStridedOp(value, op.memref, base, strides, op.count)
        rewriter.replace(op, add)


class TransposeOfLoad(RewritePattern):
    """A pattern that rewrites transpose(load_strided [s, t]) to load_strided [t, s]."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: tile.TransposeOp, rewriter: PatternRewriter
    ) -> None:
        load = op.input.owner
        if not isinstance(load, tile.LoadStridedOp):
            return
        strides, extents = load.strides[::-1], load.extents[::-1]
        counted = None if load.counted_dim is None else 1 - load.counted_dim
        transposed = tile.LoadStridedOp(
            load.tensor, load.base, strides, extents, op.result.type, counted
        )
        transposed.result.name_hint = op.result.name_hint
        rewriter.replace(op, transposed)
        if not load.result.uses:
            rewriter.erase(load)


def _refuse_schedules(module: ModuleOp) -> None:
    """Refuse roles, shared memory and layouts: explicit schedules are for GPUs only."""
    for op in module.walk():
        placed = any(_is_placed(v.type) for v in defined_values(op))
        if isinstance(op, SCHEDULE_OPS) or placed:
            refuse(
                op, "is part of an explicit schedule, which C++ kernels have none of"
            )


def _is_placed(type_: Attribute) -> bool:
    if isinstance(type_, tile.TileType):
        return type_.get_layout() is not None
    return isinstance(type_, SCHEDULE_TYPES)


@dataclass(frozen=True)
class LegalizeTileForCppPass(ModulePass):
    """Turn tile accesses into strided accesses."""

    name = "legalize-tile-for-cpp"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _refuse_schedules(op)
        patterns: list[RewritePattern] = [
            LoadToStrided(),
            StoreToStrided(),
            AddToStrided(),
            TransposeOfLoad(),
        ]
        PatternRewriteWalker(
            GreedyRewritePatternApplier(patterns), apply_recursively=False
        ).rewrite_module(op)
