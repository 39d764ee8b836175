"""Where something is set in a tile of flags."""

from __future__ import annotations

from xdsl.dialects.builtin import i1, i32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.compute import element_of, shape_of
from flexc.dialects.tile.types import TileType


@irdl_op_definition
class LiveRangeOp(IRDLOperation):
    """The smallest range that holds all flags that are set: its first index and length.

    Of the tile only the first `count` flags are looked at, or all. Where none is set
    both results are 0.

    ```mlir
    %first, %length = tile.live_range %seen count %n : !tile.tile<96xi1>
    ```
    """

    name = "tile.live_range"

    flags = operand_def(TileType)
    count = opt_operand_def(i32)
    first = result_def(i32)
    length = result_def(i32)

    traits = traits_def(Pure())
    assembly_format = "$flags (`count` $count^)? attr-dict `:` type($flags)"

    def __init__(self, flags: SSAValue, count: SSAValue | None = None):
        super().__init__(operands=[flags, count], result_types=[i32, i32])

    def verify_(self) -> None:
        if len(shape_of(self.flags.type)) != 1 or element_of(self.flags.type) != i1:
            raise VerifyException(f"expects a row of flags, got {self.flags.type}")
