"""Find sizes and strides of tensors, and describe the address of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    FixedBitwidthType,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    MemRefType,
    StridedLayoutAttr,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import shape_of
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode


def element_width(type_: Attribute) -> int:
    """Return the number of bits of one element of a tensor or memref."""
    assert isa(type_, TensorType[Attribute] | MemRefType[Attribute])
    element = type_.get_element_type()
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

    @classmethod
    def of_load(cls, op: tile.LoadOp) -> Self:
        """Describe the access of a load; new code goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.result.type)
        return cls(code, op.tensor, op.indices, shape, op.checked.get_values())

    @classmethod
    def of_store(cls, op: tile.StoreOp) -> Self:
        """Describe the access of a store; new code goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        return cls(code, op.memref, op.indices, shape, op.checked.get_values())

    @classmethod
    def of_add(cls, op: tile.AddToOp) -> Self:
        """Describe the access of an addition to memory; new code goes before it.

        Refuse additions that other programs' additions or the memref's end affect: only
        copies of a schedule with roles do these.
        """
        if op.atomic is not None or op.checked.get_values():
            refuse(op, "is atomic or checked, which needs a schedule with roles")
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        return cls(code, op.memref, op.indices, shape, ())

    @property
    def first_dim(self) -> int:
        """The dimension of the tensor that the tile's dimension 0 runs along."""
        return len(self.indices) - len(self.shape)

    def hint(self, what: str) -> str:
        """Return a name for a value that is a property of the tensor."""
        return f"{self.tensor.name_hint or 'tensor'}_{what}"

    def size(self, dim: int) -> SSAValue:
        """Return the size of one of the tensor's dimensions, as a value."""
        if (static := static_dim(self.tensor.type, dim)) is not None:
            return self.code.const(static)
        return self.code.insert(tile.DimOp(self.tensor, dim), self.hint(f"size{dim}"))


def is_zeros(value: SSAValue) -> bool:
    """Return True if all elements of a tile are the constant 0."""
    return isinstance(value.owner, tile.FullOp) and is_zero(value.owner.value)
