"""Layouts: which thread of a warp group has which elements of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException


@irdl_attr_definition
class ProductAttr(ParametrizedAttribute):
    """`#tile.product<128>`: as a product with 128 columns lies in its accumulator.

    All warps of the role share its rows.
    """

    name = "tile.product"

    columns: IntAttr

    def __init__(self, columns: int):
        super().__init__(IntAttr(columns))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.columns.data))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [IntAttr(parser.parse_integer())]


@irdl_attr_definition
class OperandAttr(ParametrizedAttribute):
    """`#tile.operand<#tile.product<64>>`: a product's left operand in registers."""

    name = "tile.operand"

    parent: ProductAttr


@irdl_attr_definition
class AlongAttr(ParametrizedAttribute):
    """`#tile.along<0, #tile.product<64>>`: a value for each row of such a tile.

    1 stands for columns. Each thread has the values of the rows, or columns, of
    which it has elements.
    """

    name = "tile.along"

    dim: IntAttr
    parent: ProductAttr

    def __init__(self, dim: int, parent: ProductAttr):
        super().__init__(IntAttr(dim), parent)

    def verify(self) -> None:
        if self.dim.data not in (0, 1):
            raise VerifyException(f"dim expects 0 or 1, got {self.dim.data}")

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.dim.data}, ")
            printer.print_attribute(self.parent)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            dim = IntAttr(parser.parse_integer())
            parser.parse_punctuation(",")
            return [dim, parser.parse_attribute()]


LayoutAttr: TypeAlias = ProductAttr | OperandAttr | AlongAttr
