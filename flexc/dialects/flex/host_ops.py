"""Ops of a derivative that the host runs: kernel launches, and O(N) work on results.

Torch runs these ops. They are not lowered further, and no kernel is emitted for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerType, SymbolRefAttr, TensorType
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    BlockArgument,
    Operation,
    Region,
    SpacedOpaqueSyntaxAttribute,
    SSAValue,
)
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    base,
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
from xdsl.traits import IsolatedFromAbove, Pure, SymbolTable, SymbolUserOpInterface
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex.facts import tensor_shape, verify_head_dim, verify_rank
from flexc.dialects.mod_region import (
    ScalarRegion,
    mod_args,
    operand_groups,
    verify_scalar_region,
)


class Coordinates(StrEnum):
    """The positions, other than b and h, that the index of a captured read varies with.

    One sum of the read's adjoints is taken for all pairs that share them: at HEAD for
    all pairs of a head, at DISTANCE for those of one `q_idx - kv_idx`. HEAD and ROW
    sums are (B, Hq, Sq), COLUMN sums (B, Hq, Skv). DISTANCE and PAIR sums have the
    shapes of `SumKind.DIAGONAL` and `SumKind.PAIRS` of `flex.pair_sums`.
    """

    HEAD = "head"
    ROW = "row"
    COLUMN = "column"
    DISTANCE = "distance"
    PAIR = "pair"


@irdl_attr_definition
class CoordinatesAttr(EnumAttribute[Coordinates], SpacedOpaqueSyntaxAttribute):
    """`Coordinates` as an attribute."""

    name = "flex.coordinates"


@irdl_op_definition
class ScatterSumsOp(IRDLOperation):
    """The gradient of a captured tensor: sums, added at the indices that were read.

    For the coordinates of a sum, `index` yields the index that the mod read there. A
    sum whose index is out of range is dropped. `index` does not depend on coordinates
    that the sums do not have. The result has the shape and the type of `target`.

    ```mlir
    %g = flex.scatter_sums row %sums, %bias : tensor<?x?x?xf32>, tensor<?xbf16>
        captures(%bias : tensor<?xbf16>)
        index(%b : i32, %h : i32, %q : i32, %k : i32, %bias_ : tensor<?xbf16>) {
      flex.yield %h : i32
    }
    ```
    """

    name = "flex.scatter_sums"

    T: ClassVar = VarConstraint("T", base(TensorType))
    sums = operand_def(TensorType[Attribute])
    target = operand_def(T)
    captures = var_operand_def()
    plus = opt_operand_def(T)
    """An earlier gradient of the same tensor, to which sums are added."""
    result = result_def(T)

    by = prop_def(CoordinatesAttr)
    index = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    custom_directives = (ScalarRegion,)
    assembly_format = (
        "$by $sums `,` $target `:` type($sums) `,` type($target)"
        + operand_groups("captures", "plus")
        + " attr-dict `index` custom<ScalarRegion>($index)"
    )

    def __init__(
        self,
        by: Coordinates,
        sums: SSAValue,
        target: SSAValue,
        captures: Sequence[SSAValue],
        plus: SSAValue | None,
        index: Region,
    ):
        super().__init__(
            operands=[sums, target, captures, plus],
            properties={"by": CoordinatesAttr(by)},
            result_types=[target.type],
            regions=[index],
        )

    @property
    def coordinates(self) -> Coordinates:
        return self.by.data

    def verify_(self) -> None:
        is_large = self.coordinates in (Coordinates.DISTANCE, Coordinates.PAIR)
        verify_rank("sums", self.sums.type, 4 if is_large else 3)
        if self.target not in self.captures:
            raise VerifyException("target expects to be one of the captures")
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


@irdl_op_definition
class CenterRowsOp(IRDLOperation):
    """sums - total * values, row by row, rounded to the type of `values`.

    `sums` and `values` are (B, H, S, D), `total` is (B, H, S).
    """

    name = "flex.center_rows"

    T: ClassVar = VarConstraint("T", base(TensorType))
    sums = operand_def(TensorType[Attribute])
    total = operand_def(TensorType[Attribute])
    values = operand_def(T)
    result = result_def(T)

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
        verify_head_dim("sums", self.sums, "values have", self.values)


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

    T: ClassVar = VarConstraint("T", base(TensorType))
    tensor = operand_def(T)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = "$tensor attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue):
        super().__init__(operands=[tensor], result_types=[tensor.type])


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

    The last outputs are added to `plus`, if given, in place: nothing else reads these.

    ```mlir
    %delta = flex.launch @attention_backward_delta(%do, %out)
        : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> -> tensor<?x?x?xf32>
    ```
    """

    name = "flex.launch"

    callee = prop_def(SymbolRefAttr)
    inputs = var_operand_def()
    plus = var_operand_def(TensorType[Attribute])
    outputs = var_result_def()

    traits = traits_def(Pure(), _Callee())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$callee `(` $inputs `)`"
        + operand_groups("plus")
        + " attr-dict `:` type($inputs) `->` type($outputs)"
    )

    def __init__(
        self,
        callee: str,
        inputs: Sequence[SSAValue],
        types: Sequence[Attribute],
        plus: Sequence[SSAValue] = (),
    ):
        super().__init__(
            operands=[inputs, plus],
            properties={"callee": SymbolRefAttr(callee)},
            result_types=[types],
        )

    def verify_(self) -> None:
        if any(value.uses.get_length() > 1 for value in self.plus):
            raise VerifyException("plus expects values without other uses")
        if any(isinstance(value, BlockArgument) for value in self.plus):
            raise VerifyException("plus expects results, not arguments of a function")
        added = self.outputs[len(self.outputs) - len(self.plus) :]
        if [v.type for v in self.plus] != [v.type for v in added]:
            raise VerifyException("plus expects the types of the last outputs")
