"""Sizes and strides of tensors, and addresses of tiles.

`tile-materialize-params`: make sizes and strides arguments of the kernel.

Every `tile.dim` and `tile.stride` becomes a constant if the tensor's type has the
value. Otherwise it becomes an argument with a `#tile.param` that tells the runtime what
to pass. Equal queries share an argument. If the kernel's `alignment` says that strides
are multiples of some number of elements, the argument is the stride in that unit, and
`aligned` lists the arguments whose addresses are aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    ArrayAttr,
    DenseArrayBase,
    FixedBitwidthType,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StridedLayoutAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import ParamAttr, ParamKind, shape_of
from flexc.dialects.tile.types import is_memory, is_tensor
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode


def element_width(type_: Attribute) -> int:
    """Return the number of bits of one element of a tensor, memref or tile."""
    is_tile = isinstance(type_, tile.TileType)
    assert is_tile or isa(type_, TensorType[Attribute] | MemRefType[Attribute])
    element = type_.element_type
    assert isinstance(element, FixedBitwidthType)
    return element.bitwidth


def static_dim(type_: Attribute, dim: int) -> int | None:
    """Return the size of a dimension, or None if it is dynamic."""
    assert isinstance(type_, TensorType | MemRefType)
    size = type_.get_shape()[dim]
    return None if size == DYNAMIC_INDEX else size


def static_stride(type_: Attribute, dim: int) -> int | None:
    """Return the stride of a dimension, in elements, or None if the type has none."""
    layout = type_.encoding if isinstance(type_, TensorType) else None
    if isinstance(type_, MemRefType):
        layout = type_.layout
    if not isinstance(layout, StridedLayoutAttr):
        return None
    stride = layout.strides.data[dim]
    return stride.data if isinstance(stride, IntAttr) else None


def is_zero(value: SSAValue) -> bool:
    """Return True if a value is the constant 0 or +0.0."""
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    constant: Attribute = value.owner.value
    if isa(constant, IntegerAttr):
        return constant.value.data == 0
    return isinstance(constant, FloatAttr) and str(constant.value.data) == "0.0"


COUNTED = (
    *(tile.LoadOp, tile.StoreOp, tile.AddToOp),
    *(tile.ReduceOp, tile.DotOp, tile.DiagonalsOp),
)
"""Ops that may have a count."""


Accesses = tile.LoadOp | tile.StoreOp | tile.AddToOp
"""Ops between memory and a tile."""


def accessed_tile(op: Accesses) -> SSAValue:
    """Return the tile that an op loads, stores or adds."""
    return op.result if isinstance(op, tile.LoadOp) else op.value


def index_position(op: Accesses, dim: int) -> int:
    """Return the position, among an op's operands, of the index of a tile's dimension.

    The tensor, and the tile that is stored, come before the indices.
    """
    before = 1 if isinstance(op, tile.LoadOp) else 2
    return before + len(op.indices) - len(shape_of(accessed_tile(op).type)) + dim


def has_count(op: Operation) -> bool:
    """Return True if an op uses only the first `count` elements of a dimension."""
    return isinstance(op, COUNTED) and op.count is not None


@dataclass(frozen=True)
class TileAccess:
    """An access to a tile of a tensor or memref.

    A target's legalization adds methods that compute the tile's address.
    """

    code: ScalarCode
    tensor: SSAValue
    indices: Sequence[SSAValue]
    shape: tuple[int, ...]
    checked: Sequence[int]
    below: SSAValue | None = field(default=None, kw_only=True)
    """The end of checked elements of the tile's dimension 0, if not the tensor's."""

    @classmethod
    def of_load(cls, op: tile.LoadOp) -> Self:
        """Describe the access of a load; new code goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.result.type)
        return cls(code, op.tensor, op.indices, shape, op.checked.get_values())

    @classmethod
    def of_store(cls, op: tile.StoreOp) -> Self:
        """Describe the access of a store; new code goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        place = op.memref, op.indices, shape, op.checked.get_values()
        return cls(code, *place, below=op.below)

    @classmethod
    def of_add(cls, op: tile.AddToOp) -> Self:
        """Describe the access of an addition to memory; new code goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        return cls(code, op.memref, op.indices, shape, op.checked.get_values())

    @property
    def first_dim(self) -> int:
        """The dimension of the tensor that the tile's dimension 0 runs along."""
        return len(self.indices) - len(self.shape)

    def hint(self, what: str) -> str:
        """Return a name for a value that is a property of the tensor."""
        return f"{self.tensor.name_hint or 'tensor'}_{what}"

    def end(self, dim: int) -> SSAValue:
        """Return the index at which a dimension of the tile ends in the tensor."""
        if dim == 0 and self.below is not None:
            return self.below
        return self.size(self.first_dim + dim)

    def size(self, dim: int) -> SSAValue:
        """Return the size of one of the tensor's dimensions, as a value."""
        if (static := static_dim(self.tensor.type, dim)) is not None:
            return self.code.const(static)
        return self.code.insert(tile.DimOp(self.tensor, dim), self.hint(f"size{dim}"))


def is_zeros(value: SSAValue) -> bool:
    """Return True if all elements of a tile are the constant 0."""
    return isinstance(value.owner, tile.FullOp) and is_zero(value.owner.value)


class ParamMaterializer:
    """A rewrite of one kernel's size and stride queries to arguments."""

    def __init__(self, kernel: tile.KernelOp):
        self.kernel = kernel
        self.block = kernel.body.block
        self.known: dict[ParamAttr, SSAValue] = {}
        self.aligned = aligned_arguments(kernel)

    def run(self) -> None:
        if self.aligned:
            self.kernel.attributes["aligned"] = DenseArrayBase.from_list(
                i64, sorted(self.aligned)
            )
        for op in list(self.kernel.walk()):
            if isinstance(op, tile.DimOp | tile.StrideOp):
                Rewriter.replace_op(op, [], [self.value_of(op)])

    def value_of(self, op: tile.DimOp | tile.StrideOp) -> SSAValue:
        dim, type_ = op.dim.value.data, op.result.type
        assert isinstance(type_, IntegerType)
        is_dim = isinstance(op, tile.DimOp)
        static = (static_dim if is_dim else static_stride)(op.tensor.type, dim)
        if static is not None:
            return ScalarCode(InsertPoint.before(op)).const(static, type_)
        tensor = op.tensor
        assert isinstance(tensor, BlockArgument)
        source = self.kernel.params.data[tensor.index].source.data
        kind = ParamKind.DIM if is_dim else ParamKind.STRIDE
        unit = 1 if is_dim else self.unit(tensor, dim)
        param = ParamAttr(kind, source, dim, unit)
        if param not in self.known:
            what = "size" if is_dim else "stride"
            name = op.result.name_hint if is_dim else None
            name = name or f"{tensor.name_hint}_{what}{dim}"
            self.known[param] = self.new_param(param, i32 if is_dim else i64, name)
        # Sizes fit 32 bits. Strides may not, except those within a tile.
        return ScalarCode(InsertPoint.before(op)).int_cast(self.known[param], type_)

    def unit(self, tensor: BlockArgument, dim: int) -> int:
        """Return the number of elements that a stride is known to be a multiple of."""
        type_ = tensor.type
        assert is_tensor(type_) or is_memory(type_)
        is_last = dim == type_.get_num_dims() - 1
        return 1 if is_last else self.aligned.get(tensor.index, 1)

    def new_param(self, param: ParamAttr, type_: IntegerType, name: str) -> SSAValue:
        """Return a new argument, multiplied by its unit.

        A compiler that sees `x * 8` can infer the alignment that vector loads need.
        """
        arg = self.block.insert_arg(type_, len(self.block.args))
        self.kernel.params = ArrayAttr([*self.kernel.params.data, param])
        unit = param.unit.data
        if unit == 1:
            arg.name_hint = name
            return arg
        arg.name_hint = f"{name}_div{unit}"
        code = ScalarCode(InsertPoint.at_start(self.block))
        return code.mul(arg, code.const(unit, type_), name)


def aligned_arguments(kernel: tile.KernelOp) -> dict[int, int]:
    """Return the unit, in elements, of the strides of each aligned argument.

    The kernel's attribute `aligned` lists these arguments. Without that attribute they
    are query, key, value and the first output. Refuse a listed argument that is no
    tensor.
    """
    alignment = kernel.number("alignment")
    if alignment is None:
        return {}
    args = kernel.body.block.args
    outputs = [i for i, a in enumerate(args) if is_memory(a.type)]
    listed = kernel.attributes.get("aligned")
    numbers = (0, 1, 2, *outputs[:1])
    if isa(listed, DenseArrayBase[I64]):
        numbers = listed.get_values()
    tensors = {i for i, a in enumerate(args) if is_tensor(a.type) or is_memory(a.type)}
    if not tensors.issuperset(numbers):
        refuse(kernel, f"alignment expects arguments {numbers} to be tensors")
    return {i: max(1, alignment * 8 // element_width(args[i].type)) for i in numbers}


@dataclass(frozen=True)
class TileMaterializeParamsPass(ModulePass):
    """Turn shape queries into kernel arguments."""

    name = "tile-materialize-params"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                ParamMaterializer(kernel).run()
