"""What a value is computed from."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, OpResult, SSAValue


def depends_on(value: SSAValue, source: SSAValue) -> bool:
    """Whether a value is computed from another, through loops and branches."""
    seen: set[SSAValue] = set()
    todo = [value]
    while todo:
        current = todo.pop()
        if current is source:
            return True
        if current not in seen:
            seen.add(current)
            todo.extend(_sources(current))
    return False


def _sources(value: SSAValue) -> Sequence[SSAValue]:
    """What a value is computed from at once."""
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return _carried(loop, value.index - 1) if isinstance(loop, scf.ForOp) else ()
    assert isinstance(value, OpResult)
    op = value.op
    if isinstance(op, scf.ForOp):
        return _carried(op, value.index)
    if isinstance(op, scf.IfOp):
        blocks = [block for region in op.regions for block in region.blocks]
        return [op.cond, *(_yielded(block, value.index) for block in blocks)]
    return op.operands


def _carried(loop: scf.ForOp, index: int) -> Sequence[SSAValue]:
    """Where a loop's carried value comes from, or its counter, which is -1."""
    bounds = [loop.lb, loop.ub, loop.step]
    if index < 0:
        return bounds
    return [*bounds, loop.iter_args[index], _yielded(loop.body.block, index)]


def _yielded(block: Block, index: int) -> SSAValue:
    assert block.last_op is not None
    return block.last_op.operands[index]
