"""`flex.weigh_rows`: rows times the weight that their probabilities leave out."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr, TensorType
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
class WeighRowsOp(IRDLOperation):
    """values * w, with w a number for each row: how much larger its probabilities are
    than exp(score - lse), as a kernel computes that from a rounded lse.

    `values` are (B, H, S, D) or (B, H, S), `lse` and `lse_rest` (B, H, S): together
    they are log-sum-exp to twice the digits. A row without pairs (lse is -inf) has
    weight 0, whatever its values are.

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
    """As of `flex.attention`, of values of rank 4."""
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
