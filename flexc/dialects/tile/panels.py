"""Work on panels of a CPU: as many columns as a few vector registers hold.

A panel is a tile whose rows are vectors. Products keep a block of the result in
registers, and read their left operand one number at a time, wherever it lies: neither
keys nor values are copied, transposed or packed. Maps run over the rows of a panel, and
combine them on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    ArrayAttr,
    DenseArrayBase,
    IntAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import verify_scalar_region
from flexc.dialects.tile.compute import (
    element_of,
    parse_map_inputs,
    print_map_inputs,
    shape_of,
)
from flexc.dialects.tile.counts import parse_count, print_count
from flexc.dialects.tile.types import ReduceKind, TileType

VECTOR_BYTES = "vector_bytes"
"""The attribute of a kernel that says how wide the vectors are that it is made for."""

KEPT = "tile"
"""What becomes of a value that a panel map yields: a tile, or a ReduceKind's value."""


@irdl_attr_definition
class RegisterTileAttr(ParametrizedAttribute):
    """The block of a product that stays in registers: rows, and vectors in each."""

    name = "tile.register_tile"

    rows: IntAttr
    vectors: IntAttr

    def __init__(self, rows: int, vectors: int):
        super().__init__(IntAttr(rows), IntAttr(vectors))

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.rows.data} x {self.vectors.data}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            rows = parser.parse_integer()
            parser.parse_keyword("x")
            return [IntAttr(rows), IntAttr(parser.parse_integer())]


@irdl_op_definition
class RegisterProductOp(IRDLOperation):
    """The matrix product lhs @ rhs, added to `acc` if there is one.

    lhs is a tile, or a tensor's elements `base + i * strides[0] + k * strides[1]`, read
    where they lie and widened exactly to the result's type. Of the result only the
    first `rows` rows are computed, or all; the others are unspecified. The sum is over
    the first `inner` columns of lhs, or all. Nothing else of lhs is read. `next` is a
    hint and changes no result: what lies so much further in memory, unless it is 0, is
    about to be read.

    ```mlir
    %s = tile.register_product %key[%base] strides [%s2, %c1] rows %n next %far, %q_t
         by <8 x 2> : tensor<?x?x?x64xbf16>, !tile.tile<64x32xf32>
         -> !tile.tile<96x32xf32>
    %o = tile.register_product %value[%base] strides [%c1, %s2] inner %n, %p onto %acc
         by <8 x 2> : tensor<?x?x?x64xbf16>, !tile.tile<96x32xf32>
         -> !tile.tile<64x32xf32>
    ```
    """

    name = "tile.register_product"

    lhs = operand_def(TileType | TensorType)
    base = opt_operand_def(i64)
    strides = var_operand_def(i64)
    rows = opt_operand_def(i32)
    inner = opt_operand_def(i32)
    next = opt_operand_def(i64)
    rhs = operand_def(TileType)
    acc = opt_operand_def(TileType)
    register_tile = prop_def(RegisterTileAttr)
    result = result_def(TileType)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$lhs (`[` $base^ `]` `strides` `[` $strides `]`)? (`rows` $rows^)? "
        "(`inner` $inner^)? (`next` $next^)? `,` $rhs (`onto` $acc^)? "
        "`by` $register_tile attr-dict "
        "`:` type($lhs) `,` type($rhs) (`onto` type($acc)^)? `->` type($result)"
    )

    def __init__(
        self,
        lhs: SSAValue,
        rhs: SSAValue,
        acc: SSAValue | None,
        type_: Attribute,
        register_tile: RegisterTileAttr,
        base: SSAValue | None = None,
        strides: Sequence[SSAValue] = (),
        rows: SSAValue | None = None,
        inner: SSAValue | None = None,
        next: SSAValue | None = None,
    ):
        super().__init__(
            operands=[lhs, base, strides, rows, inner, next, rhs, acc],
            properties={"register_tile": register_tile},
            result_types=[type_],
        )

    def verify_(self) -> None:
        (k, n), (m, n2) = shape_of(self.rhs.type), shape_of(self.result.type)
        if n != n2:
            raise VerifyException(f"result expects {n} columns as rhs has, got {n2}")
        element = element_of(self.result.type)
        if element_of(self.rhs.type) != element:
            raise VerifyException(f"rhs expects elements of {element}")
        if self.acc is not None and self.acc.type != self.result.type:
            raise VerifyException(f"acc expects type {self.result.type}")
        in_memory = not isinstance(self.lhs.type, TileType)
        if in_memory != (self.base is not None) or len(self.strides) != 2 * in_memory:
            raise VerifyException("expects a base and two strides for a tensor only")
        if self.next is not None and not in_memory:
            raise VerifyException("next expects a tensor")
        if not in_memory and shape_of(self.lhs.type) != (m, k):
            raise VerifyException(f"lhs expects shape {(m, k)}, got {self.lhs.type}")
        if not in_memory and element_of(self.lhs.type) != element:
            raise VerifyException(f"lhs expects elements of {element}")


@irdl_op_definition
class AddRegisterProductOp(IRDLOperation):
    """Add the matrix product lhs @ rhs to a memref: a register product in memory.

    Element (i, j) is added to the memref's element `base + i * stride + j`, of the
    first `rows` rows, or all. The sum is over the first `inner` columns of lhs, or all.
    No other program reads or writes what is added to.

    ```mlir
    tile.add_register_product %dk[%base] stride %s3 rows %n, %w inner %m, %q by <8 x 2>
        : memref<?x?x?x64xf32>, !tile.tile<96x32xf32>, !tile.tile<32x64xf32>
    ```
    """

    name = "tile.add_register_product"

    memref = operand_def(MemRefType)
    base = operand_def(i64)
    stride = operand_def(i64)
    rows = opt_operand_def(i32)
    lhs = operand_def(TileType)
    inner = opt_operand_def(i32)
    rhs = operand_def(TileType)
    register_tile = prop_def(RegisterTileAttr)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$memref `[` $base `]` `stride` $stride (`rows` $rows^)? `,` $lhs "
        "(`inner` $inner^)? `,` $rhs `by` $register_tile attr-dict "
        "`:` type($memref) `,` type($lhs) `,` type($rhs)"
    )

    def __init__(
        self,
        memref: SSAValue,
        base: SSAValue,
        stride: SSAValue,
        lhs: SSAValue,
        rhs: SSAValue,
        register_tile: RegisterTileAttr,
        rows: SSAValue | None = None,
        inner: SSAValue | None = None,
    ):
        super().__init__(
            operands=[memref, base, stride, rows, lhs, inner, rhs],
            properties={"register_tile": register_tile},
        )

    def verify_(self) -> None:
        (_, k), (k2, _) = shape_of(self.lhs.type), shape_of(self.rhs.type)
        if k != k2:
            raise VerifyException(f"rhs expects {k} rows as lhs has columns, got {k2}")
        if element_of(self.lhs.type) != element_of(self.rhs.type):
            raise VerifyException(f"lhs expects elements as {self.rhs.type} has")
        assert isa(self.memref.type, MemRefType[Attribute])
        if self.memref.type.element_type != element_of(self.rhs.type):
            raise VerifyException(f"memref expects elements as {self.rhs.type} has")


@irdl_op_definition
class PanelMapOp(IRDLOperation):
    """A map over the first `count` rows of panels, or all, that also combines rows.

    Operands and region are those of `tile.map` with a shape of two dimensions. Of what
    the region yields, `outcomes` says what becomes: `tile` makes a tile of it, whose
    rows from `count` on are unspecified; `max`, `min` or `sum` combines its rows, to
    one value for each column. A count is 1 at least where rows are combined.

    ```mlir
    %p, %sum = tile.panel_map [96, 32] count %n (
        %x : f32 = %s [0, 1] : !tile.tile<96x32xf32>,
        %m : f32 = %shift [1] : !tile.tile<32xf32>) {
      %d = arith.addf %x, %m : f32
      %e = math.exp2 %d : f32
      flex.yield %e, %e : f32, f32
    } as [tile, sum] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
    ```
    """

    name = "tile.panel_map"

    count = opt_operand_def(i32)
    inputs = var_operand_def()
    spans = prop_def(ArrayAttr[DenseArrayBase[I32]])
    shape_ = prop_def(DenseArrayBase.constr(i32), prop_name="shape")
    outcomes = prop_def(ArrayAttr[StringAttr])
    results_ = var_result_def()
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        shape: tuple[int, int],
        count: SSAValue | None,
        inputs: Sequence[SSAValue],
        spans: Sequence[Sequence[int]],
        outcomes: Sequence[str],
        body: Region,
    ):
        """The types of results follow from what the region yields."""
        last = body.block.last_op
        assert last is not None
        types = [
            TileType(v.type, shape if o == KEPT else shape[1:])
            for v, o in zip(last.operands, outcomes, strict=True)
        ]
        super().__init__(
            operands=[count, list(inputs)],
            properties={
                "spans": ArrayAttr([DenseArrayBase.from_list(i32, s) for s in spans]),
                "shape": DenseArrayBase.from_list(i32, shape),
                "outcomes": ArrayAttr([StringAttr(o) for o in outcomes]),
            },
            result_types=[types],
            regions=[body],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what it runs over."""
        rows, columns = self.shape_.get_values()
        return rows, columns

    def span(self, index: int) -> tuple[int, ...]:
        """The dimensions that an operand spans."""
        return tuple(self.spans.data[index].get_values())

    def outcome(self, index: int) -> ReduceKind | None:
        """How the rows of a yielded value are combined; None if it stays a tile."""
        word = self.outcomes.data[index].data
        return None if word == KEPT else ReduceKind(word)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(self.shape, lambda n: printer.print_string(str(n)))
        print_count(printer, self.count)
        printer.print_string(" ")
        print_map_inputs(printer, self.body, self.inputs, self.spans)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_string(" as ")
        with printer.in_square_brackets():
            printer.print_list(self.outcomes, lambda o: printer.print_string(o.data))
        printer.print_string(" -> ")
        printer.print_list(self.result_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> PanelMapOp:
        square = parser.Delimiter.SQUARE
        rows, columns = parser.parse_comma_separated_list(square, parser.parse_integer)
        count = parse_count(parser)
        args, inputs, spans = parse_map_inputs(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(args)
        parser.parse_keyword("as")
        words = [KEPT, *(k.value for k in ReduceKind)]
        outcomes = parser.parse_comma_separated_list(
            square, lambda: parser.parse_keyword_in(words)
        )
        parser.parse_punctuation("->")
        pos = parser.pos
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        op = cls((rows, columns), count, inputs, spans, outcomes, body)
        if list(op.result_types) != types:
            parser.raise_error("the types are not those that are yielded", pos)
        op.attributes = {} if attributes is None else dict(attributes.data)
        return op

    def verify_(self) -> None:
        words = [KEPT, *(k.value for k in ReduceKind)]
        for word in self.outcomes.data:
            if word.data not in words:
                raise VerifyException(f"outcomes expects {words}, got {word.data}")
        expected, got = len(self.results), len(self.outcomes)
        if expected != got:
            raise VerifyException(f"outcomes expects {expected} entries, got {got}")
        if len(self.spans) != len(self.inputs):
            raise VerifyException(
                f"spans expects {len(self.inputs)} entries, got {len(self.spans)}"
            )
        for i, value in enumerate(self.inputs):
            expected = tuple(self.shape[d] for d in self.span(i))
            if shape_of(value.type) != expected:
                raise VerifyException(
                    f"operand {i} expects shape {expected}, got {value.type}"
                )
        for i, result in enumerate(self.results):
            expected = self.shape if self.outcome(i) is None else self.shape[1:]
            if shape_of(result.type) != expected:
                raise VerifyException(
                    f"result {i} expects shape {expected}, got {result.type}"
                )
        verify_scalar_region(
            "tile.panel_map",
            self.body,
            [element_of(v.type) for v in self.inputs],
            [element_of(r.type) for r in self.results],
        )


PANEL_OPS = (RegisterProductOp, AddRegisterProductOp, PanelMapOp)
