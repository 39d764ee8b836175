"""`flex.combine_splits`: attention over all keys, from attention over some each."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.flex.facts import tensor_shape, verify_rank


@irdl_op_definition
class CombineSplitsOp(IRDLOperation):
    """The output and log-sum-exp of rows that were split along their keys.

    Operands are what a `flex.attention` with `splits` gives, of B * splits batches, and
    results what it gives without, of B batches. Split s weighs
    exp(row_shift_s + log_sum_s), and nothing if no pair of it is live.

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
    """As of `flex.attention`, of values of rank 4."""
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
