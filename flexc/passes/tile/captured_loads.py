"""`tile-expand-captures`: compute the addresses of captured loads.

`flex.load_capture %t[%i, %j]` becomes an offset, i * stride 0 + j * stride 1, and a
`tile.read`. A guard tests every index against its dimension, unless the indices are
known to be in range. Sizes and strides enter maps as uniform operands, so that later
passes see them as uniform when they split and hoist. `flex.dim` becomes a uniform
operand too.

Offsets have the kernel's `index_width`: 32 bits if the runtime has checked that every
offset of every captured tensor fits, else 64. One unsigned comparison tests an index
against 0 and against the size.

`tile-read-in-place`: mark gathers to keep them in the layout of the scores.

Triton gives a load the layout that suits memory best, and converts the loaded tile to
the layout of the matrix product through shared memory. If each element of a tile has an
address of its own, there is nothing to coalesce, and the conversion costs more than the
loads. This pass marks captured reads at full rank of a map, except reads that are
contiguous along columns in rows that may be aligned. A target prints a marked read as
instructions of the thread that computes with the element. A marked read includes the
widening to f32 that follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    IntegerType,
    ModuleOp,
    UnitAttr,
    f32,
    i32,
    i64,
)
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.scalar.strides import step_along
from flexc.passes.tile.map_builder import UNIFORM, operand_of
from flexc.passes.tile.tile_access import static_dim, static_stride
from flexc.passes.tile.tile_split_maps import variance

Query = tuple[type[tile.DimOp] | type[tile.StrideOp], SSAValue, int, IntegerType]


@dataclass
class CaptureExpander:
    """A rewrite that expands the captured loads of one kernel."""

    kernel: tile.KernelOp
    known: dict[Query, SSAValue] = field(default_factory=dict[Query, SSAValue])

    @property
    def offset_type(self) -> IntegerType:
        return i32 if self.kernel.number("index_width") == 32 else i64

    def run(self) -> None:
        for op in list(self.kernel.walk()):
            if isinstance(op, flex.DimOp):
                type_ = op.result.type
                assert isa(type_, IntegerType)
                value = self.query(op, tile.DimOp, op.tensor, op.dim.value.data, type_)
                Rewriter.replace_op(op, [], [value])
            elif isinstance(op, flex.LoadCaptureOp):
                self.expand(op)

    def expand(self, op: flex.LoadCaptureOp) -> None:
        code = ScalarCode(InsertPoint.before(op))
        offset, valid = None, None
        for dim, index in enumerate(op.indices):
            assert isa(index.type, IntegerType)
            if op.inside is None:
                size = self.query(op, tile.DimOp, op.tensor, dim, index.type)
                inside = code.cmp("ult", index, size)
                valid = inside if valid is None else code.and_(valid, inside)
            term = code.int_cast(index, self.offset_type)
            if static_stride(op.tensor.type, dim) != 1:
                stride = self.query(op, tile.StrideOp, op.tensor, dim, self.offset_type)
                term = code.mul(term, stride)
            offset = term if offset is None else code.add(offset, term)
        if offset is None:
            offset = code.const(0, self.offset_type)
        read = tile.ReadOp(op.tensor, offset, valid)
        read.location = op.location
        read.result.name_hint = op.result.name_hint
        Rewriter.replace_op(op, [read], [read.result])

    def query(
        self,
        user: Operation,
        kind: type[tile.DimOp] | type[tile.StrideOp],
        tensor: SSAValue,
        dim: int,
        type_: IntegerType,
    ) -> SSAValue:
        """Return a size or stride as a value that `user` can use.

        In a map, the value is an argument of the map's region.
        """
        if (size := static_dim(tensor.type, dim)) is not None and kind is tile.DimOp:
            return ScalarCode(InsertPoint.before(user)).const(size, type_)
        parent = user.parent_op()
        if not isinstance(parent, tile.MapOp):
            return self.query_at_entry(kind, tensor, dim, type_)
        assert isinstance(tensor, BlockArgument)
        outer = self.query_at_entry(kind, parent.inputs[tensor.index], dim, type_)
        return operand_of(parent, outer, UNIFORM)

    def query_at_entry(
        self,
        kind: type[tile.DimOp] | type[tile.StrideOp],
        tensor: SSAValue,
        dim: int,
        type_: IntegerType,
    ) -> SSAValue:
        key = (kind, tensor, dim, type_)
        if key not in self.known:
            what = "size" if kind is tile.DimOp else "stride"
            code = ScalarCode(InsertPoint.at_start(self.kernel.body.block))
            op = kind(tensor, dim, type_)
            self.known[key] = code.insert(op, f"{tensor.name_hint}_{what}{dim}")
        return self.known[key]


@dataclass(frozen=True)
class TileExpandCapturesPass(ModulePass):
    """Turn captured loads into reads at explicit offsets."""

    name = "tile-expand-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                CaptureExpander(kernel).run()


SIXTEEN_BITS = (BFloat16Type, Float16Type)


def is_supported(element: Attribute, widened: bool) -> bool:
    """Return True if one instruction loads an element, and widens it if `widened`."""
    if isinstance(element, SIXTEEN_BITS):
        return widened
    return element in (f32, i32)


class ReadInPlace(RewritePattern):
    """A pattern that marks a read that varies along both dimensions of its map."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReadOp, rewriter: PatternRewriter) -> None:
        parent = op.parent_op()
        if not isinstance(parent, tile.MapOp) or "in_place" in op.attributes:
            return
        assert isinstance(op.offset.type, IntegerType)
        if not is_gather(op, parent):
            return
        users = [use.operation for use in op.result.uses]
        widening = users[0] if len(users) == 1 else None
        widens = isinstance(widening, arith.ExtFOp) and widening.result.type == f32
        if not is_supported(op.result.type, widens):
            return
        if not isinstance(op.result.type, SIXTEEN_BITS):
            op.attributes["in_place"] = UnitAttr()
            rewriter.notify_op_modified(op)
            return
        assert widening is not None
        read = tile.ReadOp(op.tensor, op.offset, op.valid, f32)
        read.attributes["in_place"] = UnitAttr()
        read.result.name_hint = op.result.name_hint
        read.location = op.location
        rewriter.replace(widening, read)
        rewriter.erase(op)


def is_gather(op: tile.ReadOp, parent: tile.MapOp) -> bool:
    """Return True if each element of a full tile has an address of its own."""
    if len(parent.shape) != 2 or variance(parent)[op.offset] != frozenset((0, 1)):
        return False
    row, column = (step_along(parent, op.offset, dim) for dim in (0, 1))
    # Rows that begin at any element, as along diagonals, cannot be vector loads.
    return column != 1 or row in (1, -1)


@dataclass(frozen=True)
class TileReadInPlacePass(ModulePass):
    """Mark captured reads that are gathers at full rank."""

    name = "tile-read-in-place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(ReadInPlace(), apply_recursively=False).rewrite_module(op)
