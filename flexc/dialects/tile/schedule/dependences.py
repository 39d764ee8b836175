"""Find the values that are computed from a value, through loops and branches."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue


def dependent_on(start: SSAValue) -> set[SSAValue]:
    """Return all values that are computed from a value, and the value itself."""
    found: set[SSAValue] = set()
    pending = [start]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        for use in value.uses:
            pending += _results_of_use(use.operation, use.index)
    return found


def _results_of_use(op: Operation, index: int) -> Sequence[SSAValue]:
    """Return the values that an op computes from the operand at an index."""
    if isinstance(op, scf.ForOp):
        bounds = len(op.operands) - len(op.iter_args)
        if index >= bounds:
            return _carried(op, index - bounds)
        return [*op.results, *op.body.block.args]
    if isinstance(op, scf.YieldOp):
        parent = op.parent_op()
        if isinstance(parent, scf.ForOp):
            return _carried(parent, index)
        return parent.results[index : index + 1] if parent is not None else []
    return op.results


def _carried(loop: scf.ForOp, position: int) -> Sequence[SSAValue]:
    """Return the argument and the result of a value that a loop carries."""
    return [loop.body.block.args[position + 1], loop.results[position]]
