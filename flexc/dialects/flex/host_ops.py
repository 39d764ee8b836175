"""Ops of a derivative that the host runs: kernel launches, and O(N) work on results.

Torch runs these ops. They are not lowered further, and no kernel is emitted for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerType, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure, SymbolTable, SymbolUserOpInterface
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex.facts import tensor_shape, verify_rank
from flexc.dialects.mod_region import (
    mod_args,
    parse_operand_group,
    parse_properties,
    parse_region_with_args,
    print_operand_group,
    print_properties,
    print_region_with_args,
    verify_scalar_region,
)


class Coordinates(StrEnum):
    """The coordinates of the sums of a read's adjoints.

    HEAD and ROW sums are (B, Hq, Sq), COLUMN sums (B, Hq, Skv). DIAGONAL and PAIR sums
    have the shapes of `SumKind.DIAGONAL` and `SumKind.PAIRS` of `flex.pair_sums`. A
    read by HEAD has the same index in all rows.
    """

    HEAD = "head"
    ROW = "row"
    COLUMN = "column"
    DIAGONAL = "diagonal"
    PAIR = "pair"


@irdl_op_definition
class ScatterSumsOp(IRDLOperation):
    """The gradient of a captured tensor: sums, added at the indices that were read.

    For the coordinates of a sum, `index` yields the index that the mod read there. A
    sum whose index is out of range is dropped. `index` does not depend on coordinates
    that the sums do not have. The result has the shape and the type of `target`.

    ```mlir
    %g = flex.scatter_sums row %sums, %bias : tensor<?x?x?xf32>, tensor<?xbf16>
        captures(%bias : tensor<?xbf16>) -> tensor<?xbf16>
        index(%b : i32, %h : i32, %q : i32, %k : i32, %bias_ : tensor<?xbf16>) {
      flex.yield %h : i32
    }
    ```
    """

    name = "flex.scatter_sums"

    sums = operand_def(TensorType[Attribute])
    target = operand_def(TensorType[Attribute])
    captures = var_operand_def()
    plus = var_operand_def(TensorType[Attribute])
    """At most one earlier gradient of the same tensor, to which sums are added."""
    result = result_def(TensorType[Attribute])

    by = prop_def(StringAttr)
    index = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    def __init__(
        self,
        by: Coordinates,
        sums: SSAValue,
        target: SSAValue,
        captures: Sequence[SSAValue],
        plus: Sequence[SSAValue],
        index: Region,
    ):
        super().__init__(
            operands=[sums, target, captures, plus],
            properties={"by": StringAttr(by.value)},
            result_types=[target.type],
            regions=[index],
        )

    @property
    def coordinates(self) -> Coordinates:
        return Coordinates(self.by.data)

    def verify_(self) -> None:
        if self.by.data not in list(Coordinates):
            known = ", ".join(Coordinates)
            raise VerifyException(f"by expects one of {known}, got {self.by.data!r}")
        is_large = self.coordinates in (Coordinates.DIAGONAL, Coordinates.PAIR)
        verify_rank("sums", self.sums.type, 4 if is_large else 3)
        if self.target not in self.captures:
            raise VerifyException("target expects to be one of the captures")
        if len(self.plus) > 1:
            raise VerifyException(f"plus expects one gradient, got {len(self.plus)}")
        for name, value in (("result", self.result), *(("plus", v) for v in self.plus)):
            if value.type != self.target.type:
                raise VerifyException(
                    f"{name} expects {self.target.type} as the target is, got "
                    f"{value.type}"
                )
        self.verify_index()

    def verify_index(self) -> None:
        expected = mod_args(None, [c.type for c in self.captures])
        if list(self.index.block.arg_types) != expected:
            raise VerifyException("index expects b, h, q_idx, kv_idx and the captures")
        last = self.index.block.last_op
        types = () if last is None else last.operand_types
        rank = len(tensor_shape(self.target))
        if len(types) != rank:
            raise VerifyException(
                f"index expects to yield {rank} values, got {len(types)}"
            )
        for type_ in types:
            if not isinstance(type_, IntegerType):
                raise VerifyException(f"index expects to yield integers, got {type_}")
        verify_scalar_region("index", self.index, expected, types)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.by.data} ")
        printer.print_list((self.sums, self.target), printer.print_ssa_value)
        printer.print_string(" : ")
        types = (self.sums.type, self.target.type)
        printer.print_list(types, printer.print_attribute)
        print_operand_group(printer, "captures", self.captures)
        print_operand_group(printer, "plus", self.plus)
        print_properties(printer, self, skip=["by"])
        print_region_with_args(printer, "index", self.index)

    @classmethod
    def parse(cls, parser: Parser) -> ScatterSumsOp:
        by = Coordinates(parser.parse_keyword_in([c.value for c in Coordinates]))
        pos = parser.pos
        names = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_unresolved_operand
        )
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        sums, target = parser.resolve_operands(names, types, pos)
        captures = parse_operand_group(parser, "captures")
        plus = parse_operand_group(parser, "plus")
        _, attributes = parse_properties(parser, cls)
        index = parse_region_with_args(parser, "index")
        op = cls(by, sums, target, captures, plus, index)
        op.attributes = attributes
        return op


@irdl_op_definition
class CenterRowsOp(IRDLOperation):
    """sums - total * values, row by row, rounded to the type of `values`.

    `sums` and `values` are (B, H, S, D), `total` is (B, H, S).
    """

    name = "flex.center_rows"

    sums = operand_def(TensorType[Attribute])
    total = operand_def(TensorType[Attribute])
    values = operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    traits = traits_def(Pure())
    assembly_format = (
        "$sums `,` $total `,` $values attr-dict "
        "`:` type($sums) `,` type($total) `,` type($values) `->` type($result)"
    )

    def __init__(self, sums: SSAValue, total: SSAValue, values: SSAValue):
        super().__init__(operands=[sums, total, values], result_types=[values.type])

    def verify_(self) -> None:
        for name, rank in (("sums", 4), ("total", 3), ("values", 4)):
            verify_rank(name, getattr(self, name).type, rank)
        dims = tensor_shape(self.sums)[3], tensor_shape(self.values)[3]
        if dims[0] != dims[1]:
            raise VerifyException(f"sums and values expect equal head dims, got {dims}")
        if self.result.type != self.values.type:
            raise VerifyException(
                f"result expects {self.values.type} as values are, got "
                f"{self.result.type}"
            )


@irdl_op_definition
class SumPartsOp(IRDLOperation):
    """The sum over the first dimension, rounded to the type of the result."""

    name = "flex.sum_parts"

    parts = operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    traits = traits_def(Pure())
    assembly_format = "$parts attr-dict `:` type($parts) `->` type($result)"

    def __init__(self, parts: SSAValue, type_: Attribute):
        super().__init__(operands=[parts], result_types=[type_])

    def verify_(self) -> None:
        shapes = tensor_shape(self.parts), tensor_shape(self.result)
        if shapes[0][1:] != shapes[1]:
            raise VerifyException(f"result expects shape {shapes[0][1:]}")


@irdl_op_definition
class ZerosLikeOp(IRDLOperation):
    """Zeros of a tensor's shape and type."""

    name = "flex.zeros_like"

    tensor = operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    traits = traits_def(Pure())
    assembly_format = "$tensor attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue):
        super().__init__(operands=[tensor], result_types=[tensor.type])

    def verify_(self) -> None:
        if self.result.type != self.tensor.type:
            raise VerifyException(
                f"result expects {self.tensor.type} as the tensor is, got "
                f"{self.result.type}"
            )


class _Callee(SymbolUserOpInterface):
    """A check that the callee of a launch is a function of these types, or a kernel."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, LaunchOp)
        callee = SymbolTable.lookup_symbol(op, op.callee)
        if callee is None:
            raise VerifyException(f"callee {op.callee} expects to be in the module")
        if not isinstance(callee, func.FuncOp):
            return
        type_ = callee.function_type
        expected = tuple(type_.inputs), tuple(type_.outputs)
        if expected != (tuple(op.inputs.types), tuple(op.outputs.types)):
            raise VerifyException(f"callee {op.callee} expects types {type_}")


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """A call of a function of the module, or of the kernel that replaced it.

    ```mlir
    %delta = flex.launch @attention_backward_delta(%do, %out)
        : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> -> tensor<?x?x?xf32>
    ```
    """

    name = "flex.launch"

    callee = prop_def(SymbolRefAttr)
    inputs = var_operand_def()
    outputs = var_result_def()

    traits = traits_def(Pure(), _Callee())
    assembly_format = (
        "$callee `(` $inputs `)` attr-dict `:` type($inputs) `->` type($outputs)"
    )

    def __init__(
        self, callee: str, inputs: Sequence[SSAValue], types: Sequence[Attribute]
    ):
        super().__init__(
            operands=[inputs],
            properties={"callee": SymbolRefAttr(callee)},
            result_types=[types],
        )
