"""`flex.row_dots`: dot products of rows with rows, as the backward's delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.flex.facts import tensor_shape, verify_rank
from flexc.dialects.mod_region import (
    parse_operand_group,
    parse_properties,
    print_operand_group,
    print_properties,
)

GROUPS = ("lhs", "rhs", "minus")


@irdl_op_definition
class RowDotsOp(IRDLOperation):
    """The sum over i of dot(lhs[i], rhs[i]) along the head dim, less `minus`.

    Operands are (B, H, S, D), `minus` and the result (B, H, S).

    ```mlir
    %delta = flex.row_dots lhs(%d_out : tensor<?x?x?x64xf32>)
        rhs(%out : tensor<?x?x?x64xf32>) minus(%d_lse : tensor<?x?x?xf32>)
        -> tensor<?x?x?xf32>
    ```
    """

    name = "flex.row_dots"

    lhs = var_operand_def(TensorType[Attribute])
    rhs = var_operand_def(TensorType[Attribute])
    minus = var_operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    alignment = opt_prop_def(IntegerAttr)
    """As of `flex.attention`, of the operands of rank 4."""
    max_length = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    def __init__(
        self,
        lhs: Sequence[SSAValue],
        rhs: Sequence[SSAValue],
        minus: Sequence[SSAValue],
        result_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[lhs, rhs, minus],
            result_types=[result_type],
            properties=dict(properties or {}),
        )

    def verify_(self) -> None:
        for name, rank in zip(GROUPS, (4, 4, 3), strict=True):
            for operand in getattr(self, name):
                verify_rank(name, operand.type, rank)
        verify_rank("result", self.result.type, 3)
        if not self.lhs or len(self.lhs) != len(self.rhs) or len(self.minus) > 1:
            raise VerifyException(
                "expects as many rhs as lhs, and minus at most once, got "
                f"{len(self.lhs)}, {len(self.rhs)} and {len(self.minus)}"
            )
        for lhs, rhs in zip(self.lhs, self.rhs, strict=True):
            dims = tensor_shape(lhs)[3], tensor_shape(rhs)[3]
            if dims[0] != dims[1]:
                raise VerifyException(f"lhs and rhs expect equal head dims, got {dims}")

    def print(self, printer: Printer) -> None:
        for name in GROUPS:
            print_operand_group(printer, name, getattr(self, name))
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)
        print_properties(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> RowDotsOp:
        lhs, rhs, minus = (parse_operand_group(parser, name) for name in GROUPS)
        parser.parse_punctuation("->")
        type_ = parser.parse_type()
        properties, attributes = parse_properties(parser, cls)
        op = cls(lhs, rhs, minus, type_, properties)
        op.attributes = attributes
        return op
