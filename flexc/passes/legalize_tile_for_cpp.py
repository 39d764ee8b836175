"""`legalize-tile-for-cpp`: tiles of tensors at explicit offsets and strides.

1. `tile.load` and `tile.store` become strided accesses: a 64-bit base, a stride
   and an extent for each dimension. What a checked dimension leaves out is what
   lies beyond its extent.
2. The transpose of a loaded tile is a load with strides exchanged.
3. A product onto zeros needs no accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import shape_of
from flexc.passes.scalar_code import ScalarCode
from flexc.passes.tile_shapes import static_dim, static_stride


def is_zero(value: SSAValue) -> bool:
    """Whether a value is the constant 0 or +0.0."""
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    constant: Attribute = value.owner.value
    if isa(constant, IntegerAttr):
        return constant.value.data == 0
    return isinstance(constant, FloatAttr) and str(constant.value.data) == "0.0"


def dimensions(attr: DenseArrayBase) -> tuple[int, ...]:
    """The dimensions that an attribute lists."""
    return tuple(cast("DenseArrayBase[IntegerType]", attr).get_values())


@dataclass(frozen=True)
class StridedAccess:
    """Base, strides and extents of a tile within a tensor or memref."""

    code: ScalarCode
    tensor: SSAValue
    indices: Sequence[SSAValue]
    shape: tuple[int, ...]
    checked: Sequence[int]

    @property
    def first_dim(self) -> int:
        """The tensor's dimension that the tile's dimension 0 runs along."""
        return len(self.indices) - len(self.shape)

    def hint(self, what: str) -> str:
        return f"{self.tensor.name_hint or 'tensor'}_{what}"

    def base(self) -> SSAValue:
        """The sum of the indices times their strides."""
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

    def extents(self) -> list[SSAValue]:
        return [self.extent(i) for i in range(len(self.shape))]

    def extent(self, i: int) -> SSAValue:
        """How much of the tensor is left from the tile's start."""
        dim, code = self.first_dim + i, self.code
        if i not in self.checked:
            return code.const(self.shape[i])
        start, size = self.indices[dim], static_dim(self.tensor.type, dim)
        if size is not None:
            length = code.const(size)
        else:
            length = code.insert(tile.DimOp(self.tensor, dim), self.hint(f"size{dim}"))
        return length if is_zero(start) else code.sub(length, start, self.hint("left"))


class LoadToStrided(RewritePattern):
    """tile.load -> tile.load_strided."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.LoadOp, rewriter: PatternRewriter) -> None:
        code, type_ = ScalarCode(InsertPoint.before(op)), op.result.type
        checked = dimensions(op.checked)
        access = StridedAccess(code, op.tensor, op.indices, shape_of(type_), checked)
        load = tile.LoadStridedOp(
            op.tensor, access.base(), access.strides(), access.extents(), type_
        )
        load.result.name_hint = op.result.name_hint
        rewriter.replace(op, load)


class StoreToStrided(RewritePattern):
    """tile.store -> tile.store_strided."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.StoreOp, rewriter: PatternRewriter) -> None:
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        checked = dimensions(op.checked)
        access = StridedAccess(code, op.memref, op.indices, shape, checked)
        store = tile.StoreStridedOp(
            op.value, op.memref, access.base(), access.strides(), access.extents()
        )
        rewriter.replace(op, store)


class TransposeOfLoad(RewritePattern):
    """transpose(load_strided [s, t]) -> load_strided [t, s]."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: tile.TransposeOp, rewriter: PatternRewriter
    ) -> None:
        load = op.input.owner
        if not isinstance(load, tile.LoadStridedOp):
            return
        strides, extents = load.strides[::-1], load.extents[::-1]
        transposed = tile.LoadStridedOp(
            load.tensor, load.base, strides, extents, op.result.type
        )
        transposed.result.name_hint = op.result.name_hint
        rewriter.replace(op, transposed)
        if not load.result.uses:
            rewriter.erase(load)


class DotOntoZeros(RewritePattern):
    """dot(a, b, full(0)) -> matmul(a, b)."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        full = op.acc.owner
        if not isinstance(full, tile.FullOp) or not is_zero(full.value):
            return
        product = tile.MatmulOp(op.lhs, op.rhs, op.result.type)
        product.result.name_hint = op.result.name_hint
        rewriter.replace(op, product)
        if not full.result.uses:
            rewriter.erase(full)


@dataclass(frozen=True)
class LegalizeTileForCppPass(ModulePass):
    """Spell tiles of tensors as strided accesses."""

    name = "legalize-tile-for-cpp"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns: list[RewritePattern] = [
            LoadToStrided(),
            StoreToStrided(),
            TransposeOfLoad(),
            DotOntoZeros(),
        ]
        PatternRewriteWalker(
            GreedyRewritePatternApplier(patterns), apply_recursively=False
        ).rewrite_module(op)
