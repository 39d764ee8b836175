"""What verifiers of several tile ops check."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I32, ArrayAttr, DenseArrayBase, MemRefType, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import is_capture
from flexc.dialects.tile.schedule.types import tile_of
from flexc.dialects.tile.types import TileType

SPANS: tuple[frozenset[tuple[int, ...]], ...] = (
    frozenset({()}),
    frozenset({(), (0,)}),
    frozenset({(), (0,), (1,), (0, 1), (1, 0)}),
)
"""What operands of a map may span, by how many dimensions its results have."""


def verify_spans(
    inputs: Sequence[SSAValue],
    spans: ArrayAttr[DenseArrayBase[I32]],
    shape: tuple[int, ...],
) -> None:
    """Each operand of a map is as large as the dimensions that it spans."""
    if len(spans) != len(inputs):
        raise VerifyException(f"spans expects {len(inputs)} entries, got {len(spans)}")
    for i, (value, dims) in enumerate(zip(inputs, spans, strict=True)):
        span = tuple(dims.get_values())
        if span not in SPANS[len(shape)]:
            raise VerifyException(
                f"operand {i} expects to span dimensions of {shape}, got {list(span)}"
            )
        expected = tuple(shape[d] for d in span)
        type_ = value.type
        got = type_.get_shape() if isinstance(type_, TileType) else ()
        if got != expected:
            raise VerifyException(f"operand {i} expects shape {expected}, got {type_}")
        if not span and not is_capture(type_):
            raise VerifyException(
                f"operand {i} expects a tile, a number or a tensor, got {type_}"
            )


def verify_tile(
    what: str, type_: Attribute, shape: Sequence[int], element: Attribute
) -> None:
    """A tile, or a view of one, has a shape and elements of a type."""
    tile = tile_of(type_)
    if tile.get_shape() != tuple(shape) or tile.element_type != element:
        expected = TileType(element, shape)
        raise VerifyException(f"{what} expects a tile like {expected}, got {type_}")


def verify_dim(what: str, dim: int, rank: int) -> None:
    """A dimension is one of so many."""
    if not 0 <= dim < rank:
        raise VerifyException(f"{what} expects a dimension below {rank}, got {dim}")


def verify_elements(what: str, tile: Attribute, memory: Attribute) -> None:
    """A tile has elements of the type that a tensor or memref holds."""
    assert isa(memory, TensorType[Attribute] | MemRefType[Attribute])
    expected = memory.get_element_type()
    if tile_of(tile).element_type != expected:
        raise VerifyException(f"{what} expects elements of {expected}, got {tile}")
