"""Types, layouts and attributes of the `tile` dialect."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from typing_extensions import TypeIs
from xdsl.dialects.builtin import (
    ArrayAttr,
    ContainerType,
    FixedBitwidthType,
    IntAttr,
    MemRefType,
    NoneAttr,
    ShapedType,
    StringAttr,
    TensorType,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    ParametrizedAttribute,
    SpacedOpaqueSyntaxAttribute,
    TypeAttribute,
)
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.mod_region import is_scalar


class BareAttribute(ParametrizedAttribute):
    """An attribute that prints its parameters as a list, and integers as numbers."""

    def print_parameters(self, printer: Printer) -> None:
        def print_parameter(value: Attribute) -> None:
            match value:
                case IntAttr(data=int(number)):
                    printer.print_string(str(number))
                case _:
                    printer.print_attribute(value)

        with printer.in_angle_brackets():
            printer.print_list(self.parameters, print_parameter)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        def parse_parameter() -> Attribute:
            number = parser.parse_optional_integer()
            return parser.parse_attribute() if number is None else IntAttr(number)

        return parser.parse_comma_separated_list(
            parser.Delimiter.ANGLE, parse_parameter
        )


@irdl_attr_definition
class ProductAttr(BareAttribute):
    """`#tile.product<128>`: the accumulator layout of a product with 128 columns.

    All warps of the role share the rows.
    """

    name = "tile.product"

    columns: IntAttr

    def __init__(self, columns: int):
        super().__init__(IntAttr(columns))


@irdl_attr_definition
class OperandAttr(ParametrizedAttribute):
    """`#tile.operand<#tile.product<64>>`: the layout of an lhs in registers."""

    name = "tile.operand"

    parent: ProductAttr


@irdl_attr_definition
class AlongAttr(BareAttribute):
    """`#tile.along<0, #tile.product<64>>`: one value for each row of such a tile.

    1 stands for columns. Each thread holds the values of the rows, or columns, in which
    it has elements.
    """

    name = "tile.along"

    dim: IntAttr
    parent: ProductAttr

    def __init__(self, dim: int, parent: ProductAttr):
        super().__init__(IntAttr(dim), parent)

    def verify(self) -> None:
        if self.dim.data not in (0, 1):
            raise VerifyException(f"dim expects 0 or 1, got {self.dim.data}")


@irdl_attr_definition
class PairsAttr(ParametrizedAttribute):
    """`#tile.pairs`: the layout of a packed rhs of 16-bit floats on a CPU.

    Elements (2 i, j) and (2 i + 1, j) are adjacent. If only the first rows have values,
    and their number is odd, the next row has zeros.
    """

    name = "tile.pairs"


@irdl_attr_definition
class KeptAttr(ParametrizedAttribute):
    """`#tile.kept`: the layout of loads that a CPU's thread keeps for later programs.

    Each block of `TILE_DEPTH` columns has a place of its own. A load of a block that is
    still kept is free.
    """

    name = "tile.kept"


ThreadLayoutAttr: TypeAlias = ProductAttr | OperandAttr | AlongAttr
LayoutAttr: TypeAlias = ThreadLayoutAttr | PairsAttr | KeptAttr


def is_tensor(type_: Attribute) -> TypeIs[TensorType[Attribute]]:
    """Return True if a type is that of a tensor that a kernel reads.

    xDSL's `isa` is slower: it builds a constraint of the type at each call.
    """
    return isinstance(type_, TensorType)


def is_memory(type_: Attribute) -> TypeIs[MemRefType[Attribute]]:
    """Return True if a type is that of memory that a kernel writes."""
    return isinstance(type_, MemRefType)


@irdl_attr_definition
class TileType(
    ParametrizedAttribute, TypeAttribute, ShapedType, ContainerType[Attribute]
):
    """A block of numbers of static shape, with one or two dimensions.

    The layout in `!tile.tile<64x128xf32, #tile.product<128>>` assigns elements to
    threads, that of a CPU's tile elements to places. Without a layout, the assignment
    is not decided, or plain rows on a CPU.
    """

    name = "tile.tile"

    shape: ArrayAttr[IntAttr]
    element_type: Attribute
    layout: LayoutAttr | NoneAttr

    def __init__(
        self,
        element_type: Attribute,
        shape: Sequence[int],
        layout: LayoutAttr | None = None,
    ):
        super().__init__(
            ArrayAttr([IntAttr(n) for n in shape]), element_type, layout or NoneAttr()
        )

    def get_num_dims(self) -> int:
        return len(self.shape)

    def get_shape(self) -> tuple[int, ...]:
        return tuple(n.data for n in self.shape)

    def get_element_type(self) -> Attribute:
        return self.element_type

    def get_layout(self) -> LayoutAttr | None:
        """Return the layout, or None if it is not decided."""
        return None if isinstance(self.layout, NoneAttr) else self.layout

    def with_layout(self, layout: LayoutAttr | None) -> TileType:
        return TileType(self.element_type, self.get_shape(), layout)

    def verify(self) -> None:
        if not is_scalar(self.element_type):
            raise VerifyException(f"a tile holds numbers, got {self.element_type}")
        if self.get_num_dims() not in (1, 2) or min(self.get_shape()) < 1:
            raise VerifyException(
                f"a tile has one or two positive dimensions, got {self.get_shape()}"
            )

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_dimension_list(self.get_shape())
            printer.print_string("x")
            printer.print_attribute(self.element_type)
            if self.get_layout() is not None:
                printer.print_string(", ")
                printer.print_attribute(self.layout)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        layout: Attribute = NoneAttr()
        with parser.in_angle_brackets():
            shape, element_type = parser.parse_ranked_shape()
            if parser.parse_optional_punctuation(","):
                layout = parser.parse_attribute()
        return [ArrayAttr([IntAttr(n) for n in shape]), element_type, layout]


class ParamKind(StrEnum):
    """The kinds of kernel arguments."""

    ARGUMENT = "argument"
    DESCRIPTOR = "descriptor"
    DIM = "dim"
    STRIDE = "stride"
    PROGRESS = "progress"


@irdl_attr_definition
class ParamAttr(ParametrizedAttribute):
    """The source of a kernel argument among the call's arguments.

    `#tile.param<argument 3>` is the call's fourth argument, a tensor or number.
    `#tile.param<stride 0, 2>` is the stride, in elements, of dimension 2 of its first
    argument. `#tile.param<stride 0, 2 / 8>` is that stride divided by 8, of which it is
    known to be a multiple. `#tile.param<descriptor 0 box 64x128>` describes the first
    argument to copies of 64 rows of 128 elements. `#tile.param<progress 0>` is not
    given: it is the progress of programs, a zero for each program of the grid.
    """

    name = "tile.param"

    kind: StringAttr
    source: IntAttr
    dim: IntAttr
    unit: IntAttr
    box: ArrayAttr[IntAttr]

    def __init__(
        self,
        kind: ParamKind,
        source: int,
        dim: int = 0,
        unit: int = 1,
        box: Sequence[int] = (),
    ):
        super().__init__(
            StringAttr(kind.value),
            IntAttr(source),
            IntAttr(dim),
            IntAttr(unit),
            ArrayAttr([IntAttr(n) for n in box]),
        )

    def get_box(self) -> tuple[int, ...]:
        """Return the sizes of one copy of a descriptor."""
        return tuple(n.data for n in self.box)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.kind.data} {self.source.data}")
            if self.kind.data in (ParamKind.DIM, ParamKind.STRIDE):
                printer.print_string(f", {self.dim.data}")
            if self.unit.data != 1:
                printer.print_string(f" / {self.unit.data}")
            if box := self.get_box():
                printer.print_string(" box ")
                printer.print_dimension_list(box)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        source, dim, unit, box = 0, 0, 1, list[int]()
        with parser.in_angle_brackets():
            kind = parser.parse_keyword_in([k.value for k in ParamKind])
            source = parser.parse_integer()
            if parser.parse_optional_punctuation(","):
                dim = parser.parse_integer()
            if parser.parse_optional_punctuation("/"):
                unit = parser.parse_integer()
            if parser.parse_optional_keyword("box"):
                box = parser.parse_dimension_list()
        numbers = [IntAttr(source), IntAttr(dim), IntAttr(unit)]
        return [StringAttr(kind), *numbers, ArrayAttr([IntAttr(n) for n in box])]


class ReduceKind(StrEnum):
    """The ways in which `tile.reduce` combines elements."""

    MAX = "max"
    MIN = "min"
    SUM = "sum"


@irdl_attr_definition
class ReduceKindAttr(EnumAttribute[ReduceKind], SpacedOpaqueSyntaxAttribute):
    """`ReduceKind` as an attribute."""

    name = "tile.reduce_kind"


@irdl_attr_definition
class SharedType(BareAttribute, TypeAttribute):
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


@irdl_attr_definition
class SharesType(BareAttribute, TypeAttribute):
    """A tile of each part of a program, which all parts may read.

    `!tile.shares<2, !tile.tile<64x64xbf16>>` has a tile of each of two parts.
    """

    name = "tile.shares"

    parts: IntAttr
    tile: TileType

    def __init__(self, parts: int, tile: TileType):
        super().__init__(IntAttr(parts), tile)

    def verify(self) -> None:
        if self.parts.data < 1:
            raise VerifyException(f"expects one part or more, got {self.parts.data}")


@irdl_attr_definition
class ViewType(ParametrizedAttribute, TypeAttribute):
    """A view of the tile in one slot of shared memory, of its transpose or columns.

    A view is an address, not a value.
    """

    name = "tile.view"

    tile: TileType


@irdl_attr_definition
class BarriersType(BareAttribute, TypeAttribute):
    """A row of barriers, each of which completes a phase after some arrivals.

    `!tile.barriers<2, 1>` is two barriers; one arrival completes a phase of each.
    Phases are numbered from 0. A barrier stores the parity of its current phase's
    number.
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


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """A matrix product that was issued and whose result cannot be read yet."""

    name = "tile.pending"

    tile: TileType


def tile_of(type_: Attribute) -> TileType:
    """Return the type of a tile, or of the tile of a view.

    Raise `VerifyException` for another type.
    """
    if isinstance(type_, ViewType):
        return type_.tile
    if not isinstance(type_, TileType):
        raise VerifyException(f"expects a tile or a view of one, got {type_}")
    return type_


def matrix_shape(what: str, type_: Attribute) -> tuple[int, int]:
    """Return the rows and columns of a tile or of a view's tile.

    Raise `VerifyException` if there are not two dimensions.
    """
    tile = tile_of(type_)
    if tile.get_num_dims() != 2:
        raise VerifyException(f"{what} expects a matrix, got {tile}")
    rows, columns = tile.get_shape()
    return rows, columns


def shape_of(type_: Attribute) -> tuple[int, ...]:
    """Return the shape of a tile, or () for any other type."""
    return type_.get_shape() if isinstance(type_, TileType) else ()


def layout_of(type_: Attribute) -> LayoutAttr | None:
    """Return the layout of a tile, or None if there is none."""
    return type_.get_layout() if isinstance(type_, TileType) else None


def is_packed(type_: Attribute) -> bool:
    """Return True if a tile is packed in pairs."""
    return layout_of(type_) == PairsAttr()


def element_of(type_: Attribute) -> Attribute:
    """Return the type that a map's region sees: a tile's element, else the type."""
    return type_.element_type if isinstance(type_, TileType) else type_


def transposed(tile: TileType) -> TileType:
    """Return the type of a tile's transpose."""
    return TileType(tile.element_type, tile.get_shape()[::-1])


def tile_bytes(tile: TileType) -> int:
    """Return the number of bytes that a tile takes."""
    assert isinstance(tile.element_type, FixedBitwidthType)
    return prod(tile.get_shape()) * tile.element_type.size
