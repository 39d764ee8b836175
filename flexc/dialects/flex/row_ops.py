"""Ops on rows of tensors: `row_dots`, `map_rows`, `weigh_rows`, `combine_splits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import AnyFloatConstr, IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import tensor_shape, verify_head_dim, verify_rank
from flexc.dialects.mod_region import (
    ScalarRegion,
    operand_groups,
    verify_scalar_region,
)


class RowsOp(IRDLOperation):
    """An op on rows of tensors, with facts about the call."""

    alignment = opt_prop_def(IntegerAttr)
    """As in `flex.attention`, for tensors of rank 4."""
    max_length = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)


@irdl_op_definition
class WeighRowsOp(RowsOp):
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
            properties=properties or {},
        )

    def verify_(self) -> None:
        rank = len(tensor_shape(self.values))
        if rank not in (3, 4):
            raise VerifyException(f"values expects 3 or 4 dimensions, got {rank}")
        verify_rank("result", self.result.type, rank)
        if rank == 4:
            verify_head_dim("result", self.result, "values have", self.values)
        for name in ("lse", "lse_rest"):
            verify_rank(name, getattr(self, name).type, 3)


@irdl_op_definition
class CombineSplitsOp(RowsOp):
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
            properties=properties or {},
        )

    def verify_(self) -> None:
        for name, rank in zip(
            ("outs", "row_shift", "log_sum", "out", "lse"), (4, 3, 3, 4, 3), strict=True
        ):
            verify_rank(name, getattr(self, name).type, rank)
        verify_head_dim("out", self.out, "outs have", self.outs)


@irdl_op_definition
class RowDotsOp(RowsOp):
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
    minus = opt_operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        operand_groups("lhs", "rhs", "minus") + " `->` type($result) attr-dict"
    )

    def __init__(
        self,
        lhs: Sequence[SSAValue],
        rhs: Sequence[SSAValue],
        minus: SSAValue | None,
        result_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[lhs, rhs, minus],
            result_types=[result_type],
            properties=properties or {},
        )

    def verify_(self) -> None:
        for operand in (*self.lhs, *self.rhs):
            verify_rank("operand", operand.type, 4)
        for row in (self.result, *([] if self.minus is None else [self.minus])):
            verify_rank("result and minus", row.type, 3)
        if not self.lhs or len(self.lhs) != len(self.rhs):
            raise VerifyException(
                f"expects as many rhs as lhs, got {len(self.lhs)} and {len(self.rhs)}"
            )
        for lhs, rhs in zip(self.lhs, self.rhs, strict=True):
            verify_head_dim("rhs", rhs, "lhs has", lhs)


@irdl_op_definition
class ScaleRowsOp(RowsOp):
    """Rows times a scale, rounded to the type of the result, (B, H, S, D).

    ```mlir
    %dq = flex.scale_rows %sums scale(%scale : f32)
        : tensor<?x?x?x64xf32> -> tensor<?x?x?x64xbf16>
    ```
    """

    name = "flex.scale_rows"

    rows = operand_def(TensorType[Attribute])
    scale = operand_def(AnyFloatConstr)
    result = result_def(TensorType[Attribute])

    assembly_format = (
        "$rows `scale` `(` $scale `:` type($scale) `)` attr-dict "
        "`:` type($rows) `->` type($result)"
    )

    def __init__(
        self,
        rows: SSAValue,
        scale: SSAValue,
        result_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[rows, scale],
            result_types=[result_type],
            properties=properties or {},
        )

    def verify_(self) -> None:
        verify_rank("rows", self.rows.type, 4)
        verify_rank("result", self.result.type, 4)
        verify_head_dim("result", self.result, "rows have", self.rows)


@irdl_op_definition
class MapRowsOp(RowsOp):
    """A number for each row, computed from a number of the row by scalar code.

    ```mlir
    %shift = flex.map_rows %lse : tensor<?x?x?xf32> -> tensor<?x?x?xf32>
        code(%lse_ : f32) {
      ...
      flex.yield %shift_ : f32
    }
    ```
    """

    name = "flex.map_rows"

    rows = operand_def(TensorType[Attribute])
    result = result_def(TensorType[Attribute])
    code = region_def("single_block")

    traits = traits_def(Pure(), IsolatedFromAbove())
    custom_directives = (ScalarRegion,)
    assembly_format = (
        "$rows `:` type($rows) `->` type($result) attr-dict "
        "`code` custom<ScalarRegion>($code)"
    )

    def __init__(
        self,
        rows: SSAValue,
        result_type: Attribute,
        code: Region,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[rows],
            result_types=[result_type],
            regions=[code],
            properties=properties or {},
        )

    def verify_(self) -> None:
        types: list[Attribute] = []
        for value in (self.rows, self.result):
            verify_rank("rows and result", value.type, 3)
            assert isa(value.type, TensorType[Attribute])
            types.append(value.type.element_type)
        verify_scalar_region("code", self.code, types[:1], types[1:])
