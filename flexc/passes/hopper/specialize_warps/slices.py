"""Find the code that a role needs of a program's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile.schedule import PartsOp
from flexc.errors import ScheduleError

Operands = Callable[[Operation], Sequence[SSAValue]]
"""A function that returns the operands of an op that a role uses."""


def check_control_flow(parts: PartsOp) -> None:
    """Raise `ScheduleError` for a region of no loop, branch or map in the parts."""
    for op in parts.body.walk():
        if op.regions and not isinstance(op, scf.ForOp | scf.IfOp | tile.MapOp):
            raise ScheduleError(f"{op.name} is no loop or branch that roles can have")


class Slice:
    """The ops and values of a `tile.parts` that some root ops depend on.

    Of a loop or a branch, the slice has only the results that are used. The four values
    of a carried variable (initial operand, block argument, yielded value and result)
    are all in the slice or all outside.
    """

    def __init__(self, parts: PartsOp, operands: Operands):
        self.parts = parts
        self.operands = operands
        self.ops: set[Operation] = set()
        self.values: set[SSAValue] = set()

    def include(self, roots: Iterable[Operation]) -> Slice:
        """Add ops and everything that they depend on."""
        pending: list[Operation | SSAValue] = list(roots)
        while pending:
            item = pending.pop()
            if isinstance(item, Operation):
                pending += self._of_op(item)
            else:
                pending += self._of_value(item)
        return self

    def _of_op(self, op: Operation) -> Iterator[Operation | SSAValue]:
        if op in self.ops or op is self.parts:
            return
        self.ops.add(op)
        if (parent := op.parent_op()) is not None:
            yield parent
        if isinstance(op, scf.ForOp):
            yield from (op.lb, op.ub, op.step)
        elif isinstance(op, scf.IfOp):
            yield op.cond
        else:
            yield from self.operands(op)

    def _of_value(self, value: SSAValue) -> Iterator[Operation | SSAValue]:
        if value in self.values or not self.parts.is_ancestor(value.owner):
            return
        self.values.add(value)
        owner = value.owner
        op = owner.parent_op() if isinstance(owner, Block) else owner
        assert op is not None
        yield op
        if isinstance(op, scf.ForOp):
            if (position := carried_position(op, value)) is not None:
                yield from carried_values(op, position)
        elif isinstance(op, scf.IfOp):
            yield from branch_values(op, value)


def carried_position(loop: scf.ForOp, value: SSAValue) -> int | None:
    """Return the index of an argument or result among a loop's carried values.

    Return None for the induction variable.
    """
    if not isinstance(value, BlockArgument):
        return _number(loop.results, value)
    return value.index - 1 if value.index else None


def carried_values(loop: scf.ForOp, position: int) -> list[SSAValue]:
    """Return a carried value's initial operand, argument, yield operand and result."""
    block = loop.body.block
    return [
        loop.iter_args[position],
        block.args[position + 1],
        yielded(block)[position],
        loop.results[position],
    ]


def branch_values(branch: scf.IfOp, result: SSAValue) -> list[SSAValue]:
    """Return the values that a branch's regions yield for one of its results."""
    position = _number(branch.results, result)
    blocks = [b for region in branch.regions for b in region.blocks]
    return [yielded(block)[position] for block in blocks]


def _number(values: Sequence[SSAValue], value: SSAValue) -> int:
    return next(i for i, v in enumerate(values) if v is value)


def dependent_on(start: SSAValue) -> set[SSAValue]:
    """Return a value and all values that are computed from it.

    All values of a variable that a loop carries count, the initial one too, because
    they have one ring in shared memory.
    """
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
        if index >= 3:
            return carried_values(op, index - 3)
        return [*op.results, *op.body.block.args]
    if isinstance(op, scf.YieldOp):
        parent = op.parent_op()
        if isinstance(parent, scf.ForOp):
            return carried_values(parent, index)
        return parent.results[index : index + 1] if parent is not None else []
    return op.results
