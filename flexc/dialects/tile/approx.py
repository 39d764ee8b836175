"""Scalar functions that hardware computes to a few bits."""

from __future__ import annotations

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure


@irdl_op_definition
class TanhApproxOp(IRDLOperation):
    """The hyperbolic tangent, as hardware approximates it.

    The relative error is at most 2**-11: PTX's `tanh.approx.f32`. A scalar op,
    and so part of mod regions.

    ```mlir
    %t = tile.tanh_approx %x : f32
    ```
    """

    name = "tile.tanh_approx"

    operand = operand_def(f32)
    result = result_def(f32)

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($result)"

    def __init__(self, operand: SSAValue):
        super().__init__(operands=[operand], result_types=[f32])
