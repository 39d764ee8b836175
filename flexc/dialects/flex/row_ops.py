"""Ops on rows of tensors: `row_dots`, `weigh_rows`, `combine_splits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
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


@irdl_op_definition
class WeighRowsOp(IRDLOperation):
    """values * w, where w is the weight of each row.

    The weight is the ratio of the exact probabilities of the row to exp(score - lse),
    which a kernel computes from a rounded lse. `values` are (B, H, S, D) or (B, H, S).
    `lse` and `lse_rest` are (B, H, S); their sum is log-sum-exp to twice the digits. A
    row without live pairs (lse is -inf) has weight 0, whatever its values are.

    ```mlir
    %w = flex.weigh_rows %d_out, %lse, %rest
        : tensor<?x?x?x64xbf16>, tensor<?x?x?xf32>, tensor<?x?x?xf32>
        -> tensor<?x?x?x64xbf16>
    ```
    """

    name = "flex.weigh_rows"

    values = operand_def(TensorType[Attribute])
    lse = operand_def(TensorType[Attribute])
    lse_rest = operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    alignment = opt_prop_def(IntegerAttr)
    """As in `flex.attention`, for values of rank 4."""
    max_length = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$values `,` $lse `,` $lse_rest attr-dict "
        "`:` type($values) `,` type($lse) `,` type($lse_rest) `->` type($result)"
    )

    def __init__(
        self,
        values: SSAValue,
        lse: SSAValue,
        lse_rest: SSAValue,
        result_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[values, lse, lse_rest],
            result_types=[result_type],
            properties=dict(properties or {}),
        )

    def verify_(self) -> None:
        rank = len(tensor_shape(self.values))
        if rank not in (3, 4):
            raise VerifyException(f"values expects 3 or 4 dimensions, got {rank}")
        verify_rank("result", self.result.type, rank)
        if rank == 4:
            dims = tensor_shape(self.values)[3], tensor_shape(self.result)[3]
            if dims[0] != dims[1]:
                raise VerifyException(
                    f"result expects head dim {dims[0]} as values have, got {dims[1]}"
                )
        for name in ("lse", "lse_rest"):
            verify_rank(name, getattr(self, name).type, 3)


@irdl_op_definition
class CombineSplitsOp(IRDLOperation):
    """The output and log-sum-exp of rows that were split along their keys.

    Operands are the results of a `flex.attention` with `splits`, of B * splits batches.
    Results are those of the same attention without splits, of B batches. The weight of
    split s is exp(row_shift_s + log_sum_s), or 0 if no pair of the split is live.

    ```mlir
    %out, %lse = flex.combine_splits %outs, %shifts, %sums splits %n
        : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>
        -> tensor<?x?x?x64xbf16>, tensor<?x?x?xf32>
    ```
    """

    name = "flex.combine_splits"

    outs = operand_def(TensorType[Attribute])
    row_shift = operand_def(TensorType[Attribute])
    log_sum = operand_def(TensorType[Attribute])
    splits = operand_def(i32)
    out = result_def(TensorType[Attribute])
    lse = result_def(TensorType[Attribute])

    alignment = opt_prop_def(IntegerAttr)
    """As in `flex.attention`, for values of rank 4."""
    max_length = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$outs `,` $row_shift `,` $log_sum `splits` $splits attr-dict "
        "`:` type($outs) `,` type($row_shift) `,` type($log_sum) "
        "`->` type($out) `,` type($lse)"
    )

    def __init__(
        self,
        outs: SSAValue,
        row_shift: SSAValue,
        log_sum: SSAValue,
        splits: SSAValue,
        out_type: Attribute,
        lse_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[outs, row_shift, log_sum, splits],
            result_types=[out_type, lse_type],
            properties=dict(properties or {}),
        )

    def verify_(self) -> None:
        for name, rank in zip(
            ("outs", "row_shift", "log_sum", "out", "lse"), (4, 3, 3, 4, 3), strict=True
        ):
            verify_rank(name, getattr(self, name).type, rank)
        dims = tensor_shape(self.outs)[3], tensor_shape(self.out)[3]
        if dims[0] != dims[1]:
            raise VerifyException(
                f"out expects head dim {dims[0]} as outs have, got {dims[1]}"
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
    """As in `flex.attention`, for the operands of rank 4."""
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
