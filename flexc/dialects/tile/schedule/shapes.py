"""What ops of a schedule demand of shapes and of indices that are known."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, MemRefType, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.tile.schedule.types import BarriersType, SharedType, tile_of
from flexc.dialects.tile.types import TileType


def transposed(tile: TileType) -> TileType:
    """The type of a tile's transpose."""
    return TileType(tile.element_type, tile.get_shape()[::-1])


def verify_same_tile(what: str, type_: Attribute, expected: TileType) -> None:
    """A tile, or a view of one, has the shape and the elements of another."""
    got = tile_of(type_)
    if (got.get_shape(), got.element_type) != (
        expected.get_shape(),
        expected.element_type,
    ):
        raise VerifyException(f"{what} expects a tile like {expected}, got {got}")


def verify_box(tensor: Attribute, indices: Sequence[SSAValue], view: SSAValue) -> None:
    """What a copy moves between a tensor or memref and a view of a whole slot."""
    assert isa(tensor, TensorType[Attribute] | MemRefType[Attribute])
    tile, rank = tile_of(view.type), tensor.get_num_dims()
    if len(indices) != rank:
        raise VerifyException(f"expects {rank} indices, got {len(indices)}")
    if tile.get_num_dims() > rank:
        raise VerifyException(f"expects a tile no deeper than {tensor}, got {tile}")
    if tensor.get_element_type() != tile.element_type:
        raise VerifyException(
            f"view expects elements of {tensor.get_element_type()} as {tensor} has, "
            f"got {tile}"
        )
    if any(n & (n - 1) for n in tile.get_shape()):
        raise VerifyException(f"expects dimensions of powers of two, got {tile}")


def verify_index(index: SSAValue, row: Attribute) -> None:
    """An index into slots or barriers, where it is a constant."""
    assert isinstance(row, SharedType | BarriersType)
    size = (row.slots if isinstance(row, SharedType) else row.count).data
    number = constant_of(index)
    if number is not None and not 0 <= number < size:
        raise VerifyException(f"index expects 0 to {size - 1}, got {number}")


def constant_of(value: SSAValue) -> int | None:
    """The integer that a value is known to be."""
    if not isinstance(value.owner, arith.ConstantOp):
        return None
    constant: Attribute = value.owner.value
    return constant.value.data if isa(constant, IntegerAttr) else None
