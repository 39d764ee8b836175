"""Tiles as they are and transposed, each made where it is first asked for."""

from __future__ import annotations

from collections.abc import Container

from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import tile
from flexc.dialects.tile import TileType
from flexc.passes.scalar_code import ScalarCode


class TileForms:
    """Both forms of each tile of two dimensions.

    `turned` are the values that by now are the transposes of what they were.
    """

    def __init__(self, turned: Container[SSAValue]):
        self.turned = turned
        self.made: dict[SSAValue, SSAValue] = {}
        """The other form of a value."""

    def get(self, value: SSAValue, transposed: bool) -> SSAValue:
        """What a value was, or the transpose of that."""
        if isinstance(value.owner, tile.TransposeOp):
            return self.get(value.owner.input, not transposed)
        if (value in self.turned) == transposed:
            return value
        if value not in self.made:
            self.made[value] = other_form(value)
        return self.made[value]


def other_form(value: SSAValue) -> SSAValue:
    """The transpose of a tile, made where the tile is."""
    owner = value.owner
    if isinstance(owner, Block):
        point = InsertPoint.at_start(owner)
    else:
        point = InsertPoint.after(owner)
    code = ScalarCode(point)
    if isinstance(owner, tile.FullOp):
        return code.insert(
            tile.FullOp(owner.value, transposed_type(value)), value.name_hint
        )
    return code.insert(tile.TransposeOp(value), value.name_hint)


def transposed_type(value: SSAValue) -> TileType:
    """The type of a tile's transpose."""
    assert isinstance(value.type, TileType)
    return TileType(value.type.element_type, value.type.get_shape()[::-1])
