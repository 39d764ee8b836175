"""Reading tensors and writing memrefs, a tile at a time."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    IntegerType,
    MemRefType,
    TensorType,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex import print_indexed
from flexc.dialects.mod_region import expect_tensor
from flexc.dialects.tile.checks import verify_dim, verify_elements, verify_tile
from flexc.dialects.tile.counts import parse_count, print_count
from flexc.dialects.tile.schedule.types import tile_of
from flexc.dialects.tile.types import TileType


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The tile of a tensor's last dimensions that starts at the given indices.

    Elements outside the tensor are 0. `checked` lists the tile's dimensions
    along which that can happen; along the others the tile is known to fit.

    With a `count` only so many elements of the tile's first dimension are read, all
    of them inside the tensor; the others are unspecified.

    ```mlir
    %k = tile.load %key[%b, %h, %n, %c0] checked [0] : tensor<?x?x?x64xbf16>,
         i32, i32, i32, i32 -> !tile.tile<128x64xbf16>
    %v = tile.load %value[%b, %h, %n, %c0] count %left : tensor<?x?x?x64xbf16>,
         i32, i32, i32, i32 -> !tile.tile<128x64xbf16>
    ```
    """

    name = "tile.load"

    tensor = operand_def(TensorType[Attribute])
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)
    checked = prop_def(DenseArrayBase.constr(i32))
    result = result_def(TileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def __init__(
        self,
        tensor: SSAValue,
        indices: Sequence[SSAValue],
        checked: Sequence[int],
        type_: Attribute,
        count: SSAValue | None = None,
    ):
        super().__init__(
            operands=[tensor, indices, count],
            properties={"checked": DenseArrayBase.from_list(i32, checked)},
            result_types=[type_],
        )

    def verify_(self) -> None:
        _verify_access(self.tensor.type, self.indices, self.result.type)
        verify_elements("result", self.result.type, self.tensor.type)
        _verify_checked(self.checked, self.result.type)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_indexed(printer, self.tensor, self.indices)
        _print_checked(printer, self.checked)
        print_count(printer, self.count)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        types = [self.tensor.type, *(i.type for i in self.indices)]
        printer.print_list(types, printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        names, checked = _parse_place(parser)
        count = parse_count(parser)
        attributes = parser.parse_optional_attr_dict()
        tensor, *indices = _parse_types(parser, names)
        parser.parse_punctuation("->")
        op = cls(tensor, indices, checked, parser.parse_type(), count)
        op.attributes = attributes
        return op


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Write a tile to a memref's last dimensions, leaving out what lies outside.

    With a `count` only so many elements of the tile's last dimension are written, all
    of them inside the memref.

    ```mlir
    tile.store %o, %out[%b, %h, %m, %c0] checked [0] : memref<...>, i32, ...
    tile.store %w, %pairs[%b, %h, %m, %n] checked [0] count %left : memref<...>, ...
    ```
    """

    name = "tile.store"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)
    checked = prop_def(DenseArrayBase.constr(i32))

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryWriteEffect())

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        indices: Sequence[SSAValue],
        checked: Sequence[int],
        count: SSAValue | None = None,
    ):
        super().__init__(
            operands=[value, memref, indices, count],
            properties={"checked": DenseArrayBase.from_list(i32, checked)},
        )

    def verify_(self) -> None:
        _verify_access(self.memref.type, self.indices, self.value.type)
        _verify_checked(self.checked, self.value.type)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(", ")
        print_indexed(printer, self.memref, self.indices)
        _print_checked(printer, self.checked)
        print_count(printer, self.count)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        types = [self.memref.type, *(i.type for i in self.indices)]
        printer.print_list(types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation(",")
        names, checked = _parse_place(parser)
        count = parse_count(parser)
        attributes = parser.parse_optional_attr_dict()
        memref, *indices = _parse_types(parser, names)
        op = cls(value, memref, indices, checked, count)
        op.attributes = attributes
        return op


@irdl_op_definition
class AddToOp(IRDLOperation):
    """Add a tile to a memref's last dimensions, all of it within.

    No other program reads or writes what is added to. With a `count` only so many
    elements of the tile's first dimension are added, all of them within.

    ```mlir
    tile.add_to %d, %sums[%b, %h, %m, %at] : !tile.tile<128xf32>, memref<...>
    tile.add_to %w, %dk[%p, %b, %h, %n, %c0] count %left : !tile.tile<64x64xf32>, ...
    ```
    """

    name = "tile.add_to"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$value `,` $memref `[` $indices `]` (`count` $count^)? attr-dict "
        "`:` type($value) `,` type($memref)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        indices: Sequence[SSAValue],
        count: SSAValue | None = None,
    ):
        super().__init__(operands=[value, memref, indices, count])

    def verify_(self) -> None:
        _verify_access(self.memref.type, self.indices, self.value.type)


def _print_checked(printer: Printer, checked: DenseArrayBase[I32]) -> None:
    if dims := checked.get_values():
        printer.print_string(" checked ")
        with printer.in_square_brackets():
            printer.print_list(dims, lambda d: printer.print_string(str(d)))


def _parse_place(parser: Parser) -> tuple[list[UnresolvedOperand], list[int]]:
    names = [parser.parse_unresolved_operand()]
    names += parser.parse_comma_separated_list(
        parser.Delimiter.SQUARE, parser.parse_unresolved_operand
    )
    checked: list[int] = []
    if parser.parse_optional_keyword("checked"):
        checked = parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, parser.parse_integer
        )
    return names, checked


def _parse_types(
    parser: Parser, names: Sequence[UnresolvedOperand]
) -> Sequence[SSAValue]:
    pos = parser.pos
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, pos)


def _verify_checked(checked: DenseArrayBase[I32], tile: Attribute) -> None:
    for dim in checked.get_values():
        verify_dim("checked", dim, tile_of(tile).get_num_dims())


def _verify_access(
    tensor: Attribute, indices: Sequence[SSAValue], tile: Attribute
) -> None:
    assert isinstance(tensor, TensorType | MemRefType)
    assert isinstance(tile, TileType)
    if len(indices) != tensor.get_num_dims():
        raise VerifyException(
            f"expects {tensor.get_num_dims()} indices, got {len(indices)}"
        )
    if tile.get_num_dims() > tensor.get_num_dims():
        raise VerifyException(f"expects a tile no deeper than {tensor}, got {tile}")


@irdl_op_definition
class GatherOp(IRDLOperation):
    """Elements of a tensor's storage at `base + offsets`, 0 where `mask` is off.

    What `tile.load` becomes where a target has pointers: offsets count
    elements from the tensor's first; the result has the offsets' shape.
    """

    name = "tile.gather"

    tensor = operand_def(TensorType[Attribute])
    base = operand_def(i64)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $base `+` $offsets `]` (`if` $mask^ `:` type($mask))? attr-dict "
        "`:` type($tensor) `,` type($offsets) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None,
        type_: Attribute,
    ):
        super().__init__(operands=[tensor, base, offsets, mask], result_types=[type_])

    def verify_(self) -> None:
        verify_elements("result", self.result.type, self.tensor.type)
        _verify_offsets("result", self.result.type, self.offsets, self.mask)


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """Write a tile to a memref's storage at `base + offsets` where `mask` is on."""

    name = "tile.scatter"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)

    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `,` $memref `[` $base `+` $offsets `]` (`if` $mask^ `:` type($mask))? "
        "attr-dict `:` type($value) `,` type($memref) `,` type($offsets)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None,
    ):
        super().__init__(operands=[value, memref, base, offsets, mask])

    def verify_(self) -> None:
        _verify_offsets("value", self.value.type, self.offsets, self.mask)


def _verify_offsets(
    what: str, tile: Attribute, offsets: SSAValue, mask: SSAValue | None
) -> None:
    """There is an offset, and a flag of a mask, for each element of a tile."""
    shape = tile_of(offsets.type).get_shape()
    if not isinstance(tile_of(offsets.type).element_type, IntegerType):
        raise VerifyException(f"offsets expects integers, got {offsets.type}")
    if tile_of(tile).get_shape() != shape:
        raise VerifyException(f"{what} expects shape {shape} as offsets, got {tile}")
    if mask is not None:
        verify_tile("mask", mask.type, shape, i1)


@irdl_op_definition
class ScatterAddOp(IRDLOperation):
    """Add a tile to a memref's storage at `base + offsets`: `tile.add_to` by pointers.

    Offsets differ from each other, and no other program reads or writes there.
    """

    name = "tile.scatter_add"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    offsets = operand_def(TileType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$value `,` $memref `[` $base `+` $offsets `]` attr-dict "
        "`:` type($value) `,` type($memref) `,` type($offsets)"
    )

    def __init__(
        self, value: SSAValue, memref: SSAValue, base: SSAValue, offsets: SSAValue
    ):
        super().__init__(operands=[value, memref, base, offsets])

    def verify_(self) -> None:
        _verify_offsets("value", self.value.type, self.offsets, None)


@irdl_op_definition
class ReadOp(IRDLOperation):
    """One element of a tensor's storage, 0 where `valid` is false.

    What `flex.load_capture` becomes once strides and bounds are spelled out; a
    scalar op, and so part of mod regions. A 16-bit float may be read as f32.
    """

    name = "tile.read"

    tensor = operand_def(TensorType[Attribute])
    offset = operand_def(IntegerType)
    valid = opt_operand_def(i1)
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $offset `]` (`if` $valid^)? attr-dict "
        "`:` type($tensor) `,` type($offset) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        offset: SSAValue,
        valid: SSAValue | None,
        result_type: Attribute | None = None,
    ):
        element = expect_tensor("tensor", tensor).element_type
        super().__init__(
            operands=[tensor, offset, valid], result_types=[result_type or element]
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        element = self.tensor.type.element_type
        widens = isinstance(element, BFloat16Type | Float16Type)
        if self.result.type != element and not (widens and self.result.type == f32):
            raise VerifyException(
                f"result expects type {element}, got {self.result.type}"
            )
