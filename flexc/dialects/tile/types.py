"""Types and attributes of the `tile` dialect."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypeIs
from xdsl.dialects.builtin import (
    ArrayAttr,
    ContainerType,
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
from flexc.dialects.tile.layouts import LayoutAttr


def is_tensor(type_: Attribute) -> TypeIs[TensorType[Attribute]]:
    """Whether a type is one of what a kernel reads.

    `isa` of xDSL makes a constraint of the type at each call.
    """
    return isinstance(type_, TensorType)


def is_memory(type_: Attribute) -> TypeIs[MemRefType[Attribute]]:
    """Whether a type is one of what a kernel writes."""
    return isinstance(type_, MemRefType)


@irdl_attr_definition
class TileType(
    ParametrizedAttribute, TypeAttribute, ShapedType, ContainerType[Attribute]
):
    """A block of numbers of static shape, with one or two dimensions.

    `!tile.tile<64x128xf32, #tile.product<128>>` says in its layout which thread has
    which elements; without one that is not decided.
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

    def with_element_type(self, element_type: Attribute) -> TileType:
        return TileType(element_type, self.get_shape(), self.get_layout())

    def get_layout(self) -> LayoutAttr | None:
        """The layout, None where it is not decided."""
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
    """What a kernel argument is, in terms of the call's arguments."""

    ARGUMENT = "argument"
    DESCRIPTOR = "descriptor"
    DIM = "dim"
    STRIDE = "stride"


@irdl_attr_definition
class ParamAttr(ParametrizedAttribute):
    """Where a kernel argument comes from.

    `#tile.param<argument 3>` is the call's fourth argument, a tensor or number;
    `#tile.param<stride 0, 2>` is dimension 2's stride, in elements, of its first;
    `#tile.param<stride 0, 2 / 8>` is that stride divided by 8, which it is known
    to be a multiple of; `#tile.param<descriptor 0 box 64x128>` is what copies of 64
    rows of 128 elements each need to know of the first.
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
        """The sizes of what a descriptor's copies copy."""
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
    """How `tile.reduce` combines."""

    MAX = "max"
    MIN = "min"
    SUM = "sum"


@irdl_attr_definition
class ReduceKindAttr(EnumAttribute[ReduceKind], SpacedOpaqueSyntaxAttribute):
    """`ReduceKind` as an attribute."""

    name = "tile.reduce_kind"
