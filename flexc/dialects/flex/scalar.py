"""Scalar ops of mod regions: captured loads, sizes, remainders and the terminator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    I32,
    AnyFloatConstr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex.facts import tensor_shape, verify_rank
from flexc.dialects.mod_region import expect_tensor


@irdl_op_definition
class LoadCaptureOp(IRDLOperation):
    """One element of a captured tensor, or 0 if an index is out of range.

    The op does not wrap negative indices: the frontend writes torch's wrapping as
    scalar code. `inside` says that the indices are in range, and need no test, for
    all pairs for which the op is evaluated.

    ```mlir
    %m = flex.load_capture %slopes[%h] : tensor<?xf32>, i32
    ```
    """

    name = "flex.load_capture"

    T: ClassVar = VarConstraint("T", AnyAttr())
    tensor = operand_def(TensorType.constr(T))
    indices = var_operand_def(IntegerType)
    inside = opt_prop_def(UnitAttr)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $indices `]` (`inside` $inside^)? attr-dict "
        "`:` type($tensor) (`,` type($indices)^)?"
    )

    def __init__(
        self, tensor: SSAValue, indices: Sequence[SSAValue], inside: bool = False
    ):
        super().__init__(
            operands=[tensor, indices],
            properties={"inside": UnitAttr() if inside else None},
            result_types=[expect_tensor("tensor", tensor).element_type],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        verify_rank("tensor", self.tensor.type, len(self.indices))


@irdl_op_definition
class DimOp(IRDLOperation):
    """The size of one dimension of a captured tensor.

    ```mlir
    %n = flex.dim %table, 0 : tensor<?x?xbf16> -> i32
    ```
    """

    name = "flex.dim"

    tensor = operand_def(TensorType[Attribute])
    dim = prop_def(IntegerAttr[I32])
    result = result_def(IntegerType)

    traits = traits_def(Pure())
    assembly_format = "$tensor `,` $dim attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue, dim: int, type_: IntegerType = i32):
        super().__init__(
            operands=[tensor],
            properties={"dim": IntegerAttr(dim, i32)},
            result_types=[type_],
        )

    def verify_(self) -> None:
        rank, dim = len(tensor_shape(self.tensor)), self.dim.value.data
        if not 0 <= dim < rank:
            raise VerifyException(f"dim expects a dimension below {rank}, got {dim}")


@irdl_op_definition
class FmodOp(IRDLOperation):
    """C's fmod: the exact remainder of x / y, with the quotient rounded towards zero.

    xDSL 0.74 has no `arith.remf`.
    """

    name = "flex.fmod"

    T: ClassVar = VarConstraint("T", AnyFloatConstr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class YieldOp(IRDLOperation):
    """The terminator of every region of scalar code."""

    name = "flex.yield"

    values = var_operand_def()

    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue | Operation):
        super().__init__(operands=[list(values)])


TIES = "flex.ties"
"""The derivative of a maximum or minimum of equal operands.

A discardable attribute of `arith.maximumf` and `arith.minimumf`, as in `arith.maximumf
%x, %zero {flex.ties = "rhs"} : f32`. The attribute does not change the value. torch's
functions differ in their derivatives at equal operands: `maximum` gives half to each
operand, `clamp` gives all to the clamped value, `relu` to the constant.
"""


class Ties(StrEnum):
    """The operand that receives the derivative if both operands are equal."""

    HALVES = "halves"
    """Half of the derivative for each operand; the default without the attribute."""
    LHS = "lhs"
    RHS = "rhs"


def ties_of(op: Operation) -> Ties:
    """Return the `flex.ties` attribute of an op, or its default."""
    attr = op.attributes.get(TIES)
    return Ties(attr.data) if isinstance(attr, StringAttr) else Ties.HALVES


def set_ties(op: Operation, ties: Ties) -> None:
    """Set the `flex.ties` attribute of an op, unless `ties` is the default."""
    if ties is not Ties.HALVES:
        op.attributes[TIES] = StringAttr(ties.value)
