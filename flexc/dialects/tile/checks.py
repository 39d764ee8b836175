"""Verifiers and traits that several tile ops share."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AnyFloat,
    FixedBitwidthType,
    MemRefType,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import (
    ConditionallySpeculatable,
    EffectInstance,
    MemoryEffect,
    MemoryEffectKind,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.constants import int_constant
from flexc.dialects.tile.types import (
    BarriersType,
    SharedType,
    TileType,
    ViewType,
    tile_of,
)


def verify_tile(
    what: str, type_: Attribute, shape: Sequence[int], element: Attribute
) -> None:
    """Verify the shape and the element type of a tile or of a view's tile."""
    verify_same_tile(what, type_, TileType(element, shape))


def verify_dim(what: str, dim: int, rank: int) -> None:
    """Verify that a dimension is at least 0 and below a rank."""
    if not 0 <= dim < rank:
        raise VerifyException(f"{what} expects a dimension below {rank}, got {dim}")


def verify_elements(what: str, tile: Attribute, memory: Attribute) -> None:
    """Verify that a tile has the element type of a tensor or memref."""
    assert isa(memory, TensorType[Attribute] | MemRefType[Attribute])
    expected = memory.get_element_type()
    if tile_of(tile).element_type != expected:
        raise VerifyException(f"{what} expects elements of {expected}, got {tile}")


def verify_held(what: str, tile: Attribute, memory: Attribute) -> None:
    """Verify that a tile has the element type of a tensor, or a wider float.

    A float of more bits holds every number of a type exactly.
    """
    assert isa(memory, TensorType[Attribute] | MemRefType[Attribute])
    stored, element = memory.get_element_type(), tile_of(tile).element_type
    width = stored.bitwidth if isinstance(stored, FixedBitwidthType) else 1 << 30
    if not isinstance(element, AnyFloat) or element.bitwidth <= width:
        verify_elements(what, tile, memory)


def verify_pages(table: Attribute, tensor: Attribute) -> None:
    """Verify that a table may list the pages of a tensor."""
    assert isa(table, TensorType[Attribute])
    assert isa(tensor, TensorType[Attribute])
    if table.element_type != i32 or table.get_num_dims() != 2:
        raise VerifyException(f"pages expects a tensor of i32 of rank 2, got {table}")
    if tensor.get_num_dims() != 4 or tensor.get_shape()[2] < 1:
        raise VerifyException(f"pages expects pages of a static size, got {tensor}")


def verify_same_tile(what: str, type_: Attribute, expected: TileType) -> None:
    """Verify that a tile, or a view's tile, equals another except for its layout."""
    got = tile_of(type_)
    if got.with_layout(None) != expected.with_layout(None):
        raise VerifyException(f"{what} expects a tile like {expected}, got {got}")


def verify_box(tensor: Attribute, indices: Sequence[SSAValue], view: SSAValue) -> None:
    """Verify a copy between a tensor or memref and a view of a slot.

    Check the number of indices, the rank, the element type and the tile's dimensions.
    """
    assert isa(tensor, TensorType[Attribute] | MemRefType[Attribute])
    tile, rank = tile_of(view.type), tensor.get_num_dims()
    if len(indices) != rank:
        raise VerifyException(f"expects {rank} indices, got {len(indices)}")
    if tile.get_num_dims() > rank:
        raise VerifyException(
            f"expects a tile of at most as many dimensions as {tensor}, got {tile}"
        )
    if tensor.get_element_type() != tile.element_type:
        raise VerifyException(
            f"view expects elements of {tensor.get_element_type()} as {tensor} has, "
            f"got {tile}"
        )
    if any(n & (n - 1) for n in tile.get_shape()):
        raise VerifyException(f"expects dimensions of powers of two, got {tile}")


def verify_index(index: SSAValue, row: Attribute) -> None:
    """Verify that an index into slots or barriers is in range if it is a constant."""
    assert isinstance(row, SharedType | BarriersType)
    size = (row.slots if isinstance(row, SharedType) else row.count).data
    number = int_constant(index)
    if number is not None and not 0 <= number < size:
        raise VerifyException(f"index expects 0 to {size - 1}, got {number}")


class ReadsViews(MemoryEffect, ConditionallySpeculatable):
    """The effects of an op whose operands may be views.

    With a view, the op reads memory: it is neither moved nor merged across waits.
    Without one, the op is pure.
    """

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        """Return a read effect if an operand is a view."""
        if _has_view(op):
            return {EffectInstance(MemoryEffectKind.READ)}
        return set()

    @classmethod
    def is_speculatable(cls, op: Operation) -> bool:
        """Return True if the op may run where it did not run before."""
        return not _has_view(op)


def _has_view(op: Operation) -> bool:
    return any(isinstance(type_, ViewType) for type_ in op.operand_types)
