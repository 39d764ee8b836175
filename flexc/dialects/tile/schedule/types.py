"""Types of the schedule: memory that roles share, barriers, products in flight."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.types import TileType


@irdl_attr_definition
class SharedType(ParametrizedAttribute, TypeAttribute):
    """A row of slots in shared memory, each of which holds one tile.

    `!tile.shared<2, !tile.tile<128x64xbf16>>` has two slots.
    """

    name = "tile.shared"

    slots: IntAttr
    tile: TileType

    def __init__(self, slots: int, tile: TileType):
        super().__init__(IntAttr(slots), tile)

    def verify(self) -> None:
        if self.slots.data < 1:
            raise VerifyException(f"expects one slot or more, got {self.slots.data}")

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.slots.data}, ")
            printer.print_attribute(self.tile)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            slots = IntAttr(parser.parse_integer())
            parser.parse_punctuation(",")
            return [slots, parser.parse_attribute()]


@irdl_attr_definition
class ViewType(ParametrizedAttribute, TypeAttribute):
    """The tile in one slot of shared memory, or a transpose of it.

    No value, but a place.
    """

    name = "tile.view"

    tile: TileType


@irdl_attr_definition
class BarriersType(ParametrizedAttribute, TypeAttribute):
    """A row of barriers, each of which completes a phase after some arrivals.

    `!tile.barriers<2, 1>` are two that one arrival completes. Phases are numbered
    from 0; a barrier remembers whether the number of its current one is odd.
    """

    name = "tile.barriers"

    count: IntAttr
    arrivals: IntAttr

    def __init__(self, count: int, arrivals: int):
        super().__init__(IntAttr(count), IntAttr(arrivals))

    def verify(self) -> None:
        if min(self.count.data, self.arrivals.data) < 1:
            raise VerifyException(
                "expects one barrier and one arrival or more, got "
                f"{self.count.data} and {self.arrivals.data}"
            )

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.count.data}, {self.arrivals.data}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            count = IntAttr(parser.parse_integer())
            parser.parse_punctuation(",")
            return [count, IntAttr(parser.parse_integer())]


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """A matrix product that was issued and whose result nobody may read yet."""

    name = "tile.pending"

    tile: TileType


def tile_of(type_: Attribute) -> TileType:
    """The tile that a value is, or that lies where a view says."""
    if isinstance(type_, ViewType):
        return type_.tile
    if not isinstance(type_, TileType):
        raise VerifyException(f"expects a tile or a view of one, got {type_}")
    return type_


def matrix_shape(what: str, type_: Attribute) -> tuple[int, int]:
    """The rows and columns of a tile, or of what a view is of."""
    tile = tile_of(type_)
    if tile.get_num_dims() != 2:
        raise VerifyException(f"{what} expects a matrix, got {tile}")
    rows, columns = tile.get_shape()
    return rows, columns
