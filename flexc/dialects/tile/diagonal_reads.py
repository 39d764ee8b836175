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
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

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
    a step of 1 or -1. With bounds it is 0, and nothing is read, unless i - j is
    between them or one of them. A 16-bit float is read as f32.

    ```mlir
    %b = tile.read_diagonals %table[%first] step 1 within %low, %high
         : tensor<?xbf16>, i32 -> !tile.tile<64x128xf32>
    ```
    """

    name = "tile.read_diagonals"

    tensor = operand_def(TensorType[Attribute])
    first = operand_def(IntegerType)
    step = prop_def(IntegerAttr[I32])
    bounds = var_operand_def(i32)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $first `]` `step` $step (`within` $bounds^)? attr-dict "
        "`:` type($tensor) `,` type($first) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        first: SSAValue,
        step: int,
        bounds: Sequence[SSAValue],
        shape: Sequence[int],
    ):
        assert isa(tensor.type, TensorType[Attribute])
        super().__init__(
            operands=[tensor, first, list(bounds)],
            properties={"step": IntegerAttr(step, i32)},
            result_types=[TileType(read_as(tensor.type.element_type), shape)],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        if self.first.type not in (i32, i64):
            raise VerifyException(f"first expects type i32 or i64: {self.first.type}")
        if self.step.value.data not in (1, -1):
            raise VerifyException(f"step expects 1 or -1, got {self.step.value.data}")
        if len(self.bounds) not in (0, 2):
            raise VerifyException(f"expects no bounds or two, got {len(self.bounds)}")
        element = self.tensor.type.element_type
        if element not in READABLE:
            raise VerifyException(f"tensor expects elements of f32 and such: {element}")
        if len(shape_of(self.result.type)) != 2:
            raise VerifyException(f"result expects a matrix, got {self.result.type}")
        if element_of(self.result.type) != read_as(element):
            raise VerifyException(
                f"result expects elements of type {read_as(element)}, got "
                f"{self.result.type}"
            )
        assert isinstance(self.result.type, TileType)
        layout = self.result.type.get_layout()
        if not isinstance(layout, ProductAttr | None):
            raise VerifyException(f"result expects the layout of a product: {layout}")


READABLE = (f32, i32, BFloat16Type(), Float16Type())
"""Types of elements that can be read so."""


def read_as(element: Attribute) -> Attribute:
    """The type that elements have once they are read."""
    return f32 if isinstance(element, BFloat16Type | Float16Type) else element
