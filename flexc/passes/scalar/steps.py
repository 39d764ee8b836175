"""By how much an integer of a map changes from one row or column to the next.

A read whose offset steps by one is contiguous: memory likes it as it is.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from flexc.dialects import flex, tile

Known = dict[tuple[SSAValue, int], int | None]
"""Steps that were found, of values of maps along these dimensions."""


def step_along(op: tile.MapOp, value: SSAValue, dim: int) -> int | None:
    """The step of a region's value along a dimension; None if unknown."""
    return _step(op, value, dim, {})


def _step(op: tile.MapOp, value: SSAValue, dim: int, known: Known) -> int | None:
    key = value, dim
    if key not in known:
        known[key] = _found(op, value, dim, known)
    return known[key]


def _found(op: tile.MapOp, value: SSAValue, dim: int, known: Known) -> int | None:
    owner = value.owner
    if isinstance(owner, Block):
        assert isinstance(value, BlockArgument)
        return _operand_step(op, value.index, dim, known)
    steps: list[int | None] = []
    for operand in owner.operands:
        step = _step(op, operand, dim, known)
        if step is None and not isinstance(owner, arith.SelectOp):
            return None
        steps.append(step)
    if all(step == 0 for step in steps):
        return 0
    return _combined(owner, steps)


def _operand_step(op: tile.MapOp, index: int, dim: int, known: Known) -> int | None:
    span = op.span(index)
    if dim not in span:
        return 0
    source = op.inputs[index]
    if isinstance(source.owner, tile.IotaOp):
        return 1
    if isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult):
        last = source.owner.body.block.last_op
        assert isinstance(last, flex.YieldOp)
        value = last.values[source.index]
        return _step(source.owner, value, span.index(dim), known)
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
