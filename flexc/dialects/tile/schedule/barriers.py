"""Barriers in shared memory (PTX's mbarriers): how roles wait for each other."""

from __future__ import annotations

from xdsl.dialects.builtin import I32, IntegerAttr, i32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.schedule.shapes import verify_index
from flexc.dialects.tile.schedule.types import BarriersType


@irdl_op_definition
class BarriersOp(IRDLOperation):
    """Barriers, ready to be used by all roles."""

    name = "tile.barriers"

    result = result_def(BarriersType)

    traits = traits_def(MemoryAllocEffect())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, type_: BarriersType):
        super().__init__(result_types=[type_])


class _BarrierOp(IRDLOperation):
    """Something done to one barrier."""

    barriers = operand_def(BarriersType)
    index = operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        verify_index(self.index, self.barriers.type)


@irdl_op_definition
class ExpectOp(_BarrierOp):
    """Arrive, and let the phase last until so many bytes were copied in as well."""

    name = "tile.expect"

    bytes = prop_def(IntegerAttr[I32])

    assembly_format = (
        "$barriers `[` $index `]` `bytes` $bytes attr-dict `:` type($barriers)"
    )

    def __init__(self, barriers: SSAValue, index: SSAValue, bytes: int):
        super().__init__(
            operands=[barriers, index], properties={"bytes": IntegerAttr(bytes, i32)}
        )

    def verify_(self) -> None:
        super().verify_()
        if self.bytes.value.data < 1:
            raise VerifyException(
                f"expects a positive number of bytes, got {self.bytes.value.data}"
            )


@irdl_op_definition
class ArriveOp(_BarrierOp):
    """Arrive: all that this role has done before is done for those who wait."""

    name = "tile.arrive"

    assembly_format = "$barriers `[` $index `]` attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue):
        super().__init__(operands=[barriers, index])


@irdl_op_definition
class AwaitOp(_BarrierOp):
    """Wait until the barrier's current phase has not the parity `parity`.

    So parity 0 waits for the first phase to complete, and 1 does not wait before
    any phase was completed.
    """

    name = "tile.await"

    # Again, as an op's operands come before those of its base class.
    barriers = operand_def(BarriersType)
    index = operand_def(i32)
    parity = operand_def(i32)

    assembly_format = (
        "$barriers `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"
    )

    def __init__(self, barriers: SSAValue, index: SSAValue, parity: SSAValue):
        super().__init__(operands=[barriers, index, parity])
