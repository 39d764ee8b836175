"""What the types of tensors and memrefs say about sizes and strides."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    FixedBitwidthType,
    IntAttr,
    MemRefType,
    StridedLayoutAttr,
    TensorType,
)
from xdsl.ir import Attribute
from xdsl.utils.hints import isa


def element_width(type_: Attribute) -> int:
    """Bits of one element."""
    assert isa(type_, TensorType[Attribute] | MemRefType[Attribute])
    element = type_.get_element_type()
    assert isinstance(element, FixedBitwidthType)
    return element.bitwidth


def static_dim(type_: Attribute, dim: int) -> int | None:
    """The size of a dimension, where the type says it."""
    assert isinstance(type_, TensorType | MemRefType)
    size = type_.get_shape()[dim]
    return None if size == DYNAMIC_INDEX else size


def static_stride(type_: Attribute, dim: int) -> int | None:
    """The stride of a dimension, in elements, where the type says it."""
    layout = type_.encoding if isinstance(type_, TensorType) else None
    if isinstance(type_, MemRefType):
        layout = type_.layout
    if not isinstance(layout, StridedLayoutAttr):
        return None
    stride = layout.strides.data[dim]
    return stride.data if isinstance(stride, IntAttr) else None
