"""Asynchronous matrix products of a warp group (PTX's wgmma)."""

from __future__ import annotations

from xdsl.dialects.builtin import I32, IntegerAttr, i32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect

from flexc.dialects.tile.schedule.types import PendingType, ViewType
from flexc.dialects.tile.types import TileType


@irdl_op_definition
class IssueDotOp(IRDLOperation):
    """Start lhs @ rhs + acc. lhs is a tile or lies in shared memory, rhs lies there.

    Without `acc` the product alone. Products of a role complete in the order in
    which they were issued; until one has, its operands must stay what they are.

    ```mlir
    %s = tile.issue_dot %q, %k_t : !tile.view<...>, !tile.view<...>
         -> !tile.pending<!tile.tile<64x128xf32>>
    ```
    """

    name = "tile.issue_dot"

    lhs = operand_def(TileType | ViewType)
    rhs = operand_def(ViewType)
    acc = opt_operand_def(TileType)
    result = result_def(PendingType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$lhs `,` $rhs (`,` $acc^ `:` type($acc) `,`)? attr-dict "
        "`of` type($lhs) `,` type($rhs) `->` type($result)"
    )

    def __init__(
        self, lhs: SSAValue, rhs: SSAValue, acc: SSAValue | None, type_: TileType
    ):
        super().__init__(operands=[lhs, rhs, acc], result_types=[PendingType(type_)])


@irdl_op_definition
class AwaitDotOp(IRDLOperation):
    """Wait until at most `outstanding` products that this role issued are in flight.

    The product whose result this gives must not be among these.
    """

    name = "tile.await_dot"

    pending = operand_def(PendingType)
    outstanding = prop_def(IntegerAttr[I32])
    result = result_def(TileType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$pending `outstanding` $outstanding attr-dict "
        "`:` type($pending) `->` type($result)"
    )

    def __init__(self, pending: SSAValue, outstanding: int):
        assert isinstance(pending.type, PendingType)
        super().__init__(
            operands=[pending],
            properties={"outstanding": IntegerAttr(outstanding, i32)},
            result_types=[pending.type.tile],
        )
