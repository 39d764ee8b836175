"""By how much an integer of a map changes from one row or column to the next.

A read whose offset steps by one is contiguous: memory likes it as it is.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from flexc.dialects import flex, tile


def step_along(op: tile.MapOp, value: SSAValue, dim: int) -> int | None:
    """The step of a region's value along a dimension; None if unknown."""
    owner = value.owner
    if isinstance(owner, Block):
        assert isinstance(value, BlockArgument)
        return _operand_step(op, value.index, dim)
    if isinstance(owner, arith.ConstantOp):
        return 0
    steps = [step_along(op, v, dim) for v in owner.operands]
    if all(step == 0 for step in steps):
        return 0
    return _combined(owner, steps)


def _operand_step(op: tile.MapOp, index: int, dim: int) -> int | None:
    span = op.span(index)
    if dim not in span:
        return 0
    source = op.inputs[index]
    if isinstance(source.owner, tile.IotaOp):
        return 1
    if isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult):
        last = source.owner.body.block.last_op
        assert isinstance(last, flex.YieldOp)
        return step_along(source.owner, last.values[source.index], span.index(dim))
    return None


def _combined(op: Operation, steps: list[int | None]) -> int | None:
    match op, steps:
        case arith.AddiOp(), [int(a), int(b)]:
            return a + b
        case arith.SubiOp(), [int(a), int(b)]:
            return a - b
        case ((arith.ExtSIOp() | arith.ExtUIOp() | arith.TruncIOp()), [a]):
            return a
        case arith.MuliOp(), [int(a), 0]:
            factor = constant(op.operands[1])
            return None if factor is None else a * factor
        case arith.MuliOp(), [0, int(b)]:
            factor = constant(op.operands[0])
            return None if factor is None else b * factor
        case arith.SelectOp(), [_, a, b] if a == b:
            return a
        case _:
            return None


def constant(value: SSAValue) -> int | None:
    """The value of an integer constant."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None
