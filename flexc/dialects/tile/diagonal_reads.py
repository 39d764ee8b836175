"""Reading a tensor along the diagonals of a tile."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    BFloat16Type,
    Float16Type,
    IntegerAttr,
    IntegerType,
    TensorType,
    f32,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import expect_tensor
from flexc.dialects.tile.compute import element_of, shape_of
from flexc.dialects.tile.layouts import ProductAttr
from flexc.dialects.tile.types import TileType

IDLE_BEYOND = "idle_beyond"
"""Says of the lesser of an index and a limit that nothing which is computed of larger
indices counts: they are lowered only so that captured tensors are read inside."""


@irdl_op_definition
class ReadDiagonalsOp(IRDLOperation):
    """Elements of a tensor's storage that are the same along the tile's diagonals.

    Element [i, j] is that at `first + step * (i - j)`, a sum of `first`'s type, for
    a step of 1 or -1. A 16-bit float is read as f32.

    Where only so many `rows` or `columns` count, more or fewer than there are, nothing
    is known of elements beyond them. Columns beyond the last are not read; rows may be
    read as the last one that counts would be, if need be one before the tile's first.

    ```mlir
    %b = tile.read_diagonals %table[%first] step 1 rows %m columns %n
         : tensor<?xbf16>, i32 -> !tile.tile<64x128xf32>
    ```
    """

    name = "tile.read_diagonals"

    tensor = operand_def(TensorType[Attribute])
    first = operand_def(IntegerType)
    step = prop_def(IntegerAttr[I32])
    rows = opt_operand_def(i32)
    columns = opt_operand_def(i32)
    result = result_def(TileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $first `]` `step` $step (`rows` $rows^)? (`columns` $columns^)? "
        "attr-dict `:` type($tensor) `,` type($first) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        first: SSAValue,
        step: int,
        shape: Sequence[int],
        rows: SSAValue | None = None,
        columns: SSAValue | None = None,
    ):
        element = expect_tensor("tensor", tensor).element_type
        super().__init__(
            operands=[tensor, first, rows, columns],
            properties={"step": IntegerAttr(step, i32)},
            result_types=[TileType(read_as(element), shape)],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        assert isinstance(self.result.type, TileType)
        element, result = self.tensor.type.element_type, self.result.type
        if self.first.type not in (i32, i64):
            raise VerifyException(f"first expects type i32 or i64: {self.first.type}")
        if self.step.value.data not in (1, -1):
            raise VerifyException(f"step expects 1 or -1, got {self.step.value.data}")
        if element not in READABLE:
            raise VerifyException(f"tensor expects numbers of 16 or 32 bits: {element}")
        if len(shape_of(result)) != 2 or element_of(result) != read_as(element):
            raise VerifyException(
                f"result expects a matrix of {read_as(element)}, got {result}"
            )
        if not isinstance(result.get_layout(), ProductAttr | None):
            raise VerifyException(f"result expects the layout of a product: {result}")


READABLE = (f32, i32, BFloat16Type(), Float16Type())
"""Types of elements that can be read so."""


def read_as(element: Attribute) -> Attribute:
    """The type that elements have once they are read."""
    return f32 if isinstance(element, BFloat16Type | Float16Type) else element
