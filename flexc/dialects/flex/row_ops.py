"""Ops on rows of tensors: `map_rows`, `combine_splits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import AnyFloat, IntegerAttr, TensorType, f32, f64
from xdsl.ir import Attribute, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import (
    score_type,
    tensor_shape,
    verify_head_dim,
    verify_rank,
)
from flexc.dialects.mod_region import (
    ScalarRegion,
    arguments_of,
    operand_groups,
    verify_scalar_region,
    yielded,
)


class RowsOp(IRDLOperation):
    """An op on rows of tensors, with facts about the call."""

    alignment = opt_prop_def(IntegerAttr)
    """As in `flex.attention`, for tensors of rank 4."""
    max_length = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)


@irdl_op_definition
class CombineSplitsOp(RowsOp):
    """The output and log-sum-exp of rows that were split along their keys.

    Operands are the results of a `flex.attention` with N `splits`, (B * N, H, Sq, D)
    and (B * N, H, Sq), as views (B, H, Sq, N, D) and (B, H, Sq, N). Results are those
    of the same attention without splits. The weight of split s is
    exp(row_shift_s + log_sum_s), or 0 if no pair of the split is live.

    ```mlir
    %out, %lse = flex.combine_splits %outs, %shifts, %sums
        : tensor<?x?x?x?x64xf32>, tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>
        -> tensor<?x?x?x64xbf16>, tensor<?x?x?xf32>
    ```
    """

    name = "flex.combine_splits"

    outs = operand_def(TensorType[Attribute])
    row_shift = operand_def(TensorType[Attribute])
    log_sum = operand_def(TensorType[Attribute])
    out = result_def(TensorType[Attribute])
    lse = result_def(TensorType[Attribute])

    assembly_format = (
        "$outs `,` $row_shift `,` $log_sum attr-dict "
        "`:` type($outs) `,` type($row_shift) `,` type($log_sum) "
        "`->` type($out) `,` type($lse)"
    )

    def __init__(
        self,
        outs: SSAValue,
        row_shift: SSAValue,
        log_sum: SSAValue,
        out_type: Attribute,
        lse_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[outs, row_shift, log_sum],
            result_types=[out_type, lse_type],
            properties=properties or {},
        )

    def verify_(self) -> None:
        for name, rank in zip(
            ("outs", "row_shift", "log_sum", "out", "lse"), (5, 4, 4, 4, 3), strict=True
        ):
            verify_rank(name, getattr(self, name).type, rank)
        verify_head_dim("out", self.out, "outs have", self.outs)


@irdl_op_definition
class MapRowsOp(RowsOp):
    """Rows of numbers and of vectors, computed from those of other tensors by `code`.

    All tensors are matrices (B, H, S, D) or numbers of rows (B, H, S). `code` receives
    the sum over i of dot(lhs[i], rhs[i]) along the head dim, if there are any, and an
    element of each of `values`, which may be scalars too. It yields an element of each
    result. It computes in f64 if a tensor is of f64, else in f32; results are rounded.
    A result depends on matrices of its own head dim alone, and a number of a row on no
    element of a matrix.

    ```mlir
    %delta, %zeros = flex.map_rows lhs(%d_out : tensor<?x?x?x64xbf16>)
        rhs(%out : tensor<?x?x?x64xbf16>) values(%d_lse : tensor<?x?x?xf32>)
        -> tensor<?x?x?xf32>, tensor<?x?x?x32xf32> code(%dot : f32, %d_lse_ : f32) {
      %delta_ = arith.subf %dot, %d_lse_ : f32
      %zero = arith.constant 0.0 : f32
      flex.yield %delta_, %zero : f32, f32
    }
    ```
    """

    name = "flex.map_rows"

    lhs = var_operand_def(TensorType[Attribute])
    rhs = var_operand_def(TensorType[Attribute])
    values = var_operand_def()
    rows = var_result_def(TensorType[Attribute])
    code = region_def("single_block")

    traits = traits_def(Pure(), IsolatedFromAbove())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    custom_directives = (ScalarRegion,)
    assembly_format = (
        operand_groups("lhs", "rhs", "values")
        + " `->` type($rows) attr-dict `code` custom<ScalarRegion>($code)"
    )

    def __init__(
        self,
        lhs: Sequence[SSAValue],
        rhs: Sequence[SSAValue],
        values: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        code: Region,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=[lhs, rhs, values],
            result_types=[result_types],
            regions=[code],
            properties=properties or {},
        )

    @staticmethod
    def computed_type(lhs: Sequence[SSAValue], values: Sequence[SSAValue]) -> AnyFloat:
        """Return the type that code for operands computes in."""
        tensors = [v for v in (*lhs, *values) if is_rows(v)]
        return f64 if f64 in (score_type(v.type) for v in tensors) else f32

    @staticmethod
    def code_types(
        lhs: Sequence[SSAValue], values: Sequence[SSAValue]
    ) -> list[Attribute]:
        """Return the types of the code's arguments for operands."""
        type_ = MapRowsOp.computed_type(lhs, values)
        given = (type_ if is_rows(v) else v.type for v in values)
        return [*([type_] if lhs else []), *given]

    def dot(self) -> BlockArgument | None:
        """Return the code's argument for the dot products, if there are any."""
        return self.code.block.args[0] if self.lhs else None

    def arguments(self) -> list[tuple[SSAValue, BlockArgument]]:
        """Return the values, each with its argument of the code."""
        args = self.code.block.args[bool(self.lhs) :]
        return list(zip(self.values, args, strict=True))

    def yielded(self, result: SSAValue) -> SSAValue:
        """Return the code's value for a result."""
        return yielded(self.code.block)[self.rows.index(result)]

    def verify_(self) -> None:
        for operand in (*self.lhs, *self.rhs):
            verify_rank("operand", operand.type, 4)
        if len(self.lhs) != len(self.rhs):
            raise VerifyException(
                f"expects as many rhs as lhs, got {len(self.lhs)} and {len(self.rhs)}"
            )
        for lhs, rhs in zip(self.lhs, self.rhs, strict=True):
            verify_head_dim("rhs", rhs, "lhs has", lhs)
        for rows in (*filter(is_rows, self.values), *self.rows):
            if len(tensor_shape(rows)) not in (3, 4):
                raise VerifyException(f"rows expect 3 or 4 dimensions, got {rows.type}")
        types = self.code_types(self.lhs, self.values)
        computed = self.computed_type(self.lhs, self.values)
        verify_scalar_region("code", self.code, types, [computed] * len(self.rows))
        for result in self.rows:
            self.verify_result(result)

    def verify_result(self, result: SSAValue) -> None:
        read = arguments_of([self.yielded(result)])
        for value, arg in self.arguments():
            if arg in read and is_matrix(value):
                verify_rank("result of elements of a matrix", result.type, 4)
                verify_head_dim("result", result, "values have", value)


def is_rows(value: SSAValue) -> bool:
    """Return True for a tensor, False for a scalar."""
    return isa(value.type, TensorType[Attribute])


def is_matrix(rows: SSAValue) -> bool:
    """Return True if a value has a vector for each row, not a number."""
    return is_rows(rows) and len(tensor_shape(rows)) > 3
