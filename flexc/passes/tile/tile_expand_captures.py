"""`tile-expand-captures`: compute the addresses of captured loads.

`flex.load_capture %t[%i, %j]` becomes an offset, i * stride 0 + j * stride 1, and a
`tile.read`. A guard tests every index against its dimension, unless the indices are
known to be in range. Sizes and strides enter maps as uniform operands, so that later
passes see them as uniform when they split and hoist. `flex.dim` becomes a uniform
operand too.

Offsets have the kernel's `index_width`: 32 bits if the runtime has checked that every
offset of every captured tensor fits, else 64. One unsigned comparison tests an index
against 0 and against the size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    i32,
    i64,
)
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_access import static_dim, static_stride

Query = tuple[type[tile.DimOp] | type[tile.StrideOp], SSAValue, int, IntegerType]


@dataclass
class CaptureExpander:
    """A rewrite that expands the captured loads of one kernel."""

    kernel: tile.KernelOp
    known: dict[Query, SSAValue] = field(default_factory=dict[Query, SSAValue])

    @property
    def offset_type(self) -> IntegerType:
        width = self.kernel.attributes.get("index_width")
        is_narrow = isinstance(width, IntegerAttr) and width.value.data == 32
        return i32 if is_narrow else i64

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
        return uniform_operand(parent, outer)

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


def uniform_operand(op: tile.MapOp, value: SSAValue) -> SSAValue:
    """Return the region's argument for an outer scalar; add the operand if missing."""
    for index, given in enumerate(op.inputs):
        if given is value and not op.span(index):
            return op.body.block.args[index]
    op.operands = [*op.operands, value]
    spans = [*op.spans.data, DenseArrayBase.from_list(i32, [])]
    op.spans = type(op.spans)(spans)
    arg = op.body.block.insert_arg(value.type, len(op.body.block.args))
    arg.name_hint = value.name_hint
    return arg


@dataclass(frozen=True)
class TileExpandCapturesPass(ModulePass):
    """Turn captured loads into reads at explicit offsets."""

    name = "tile-expand-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                CaptureExpander(kernel).run()
