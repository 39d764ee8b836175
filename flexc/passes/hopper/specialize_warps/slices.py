"""Which code of a program's parts a role needs, and what depends on the part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile.schedule import PartsOp
from flexc.errors import ScheduleError

Operands = Callable[[Operation], Sequence[SSAValue]]
"""The operands of an op that a role uses."""


def check_control_flow(parts: PartsOp) -> None:
    """Raise if there is more to a program's parts than loops, branches and maps."""
    for op in parts.body.walk():
        if op.regions and not isinstance(op, scf.ForOp | scf.IfOp | tile.MapOp):
            raise ScheduleError(f"{op.name} is no loop or branch that roles can have")


class Slice:
    """The ops and values of a `tile.parts` that some of its ops depend on.

    Of loops and branches only those results are part of it that are used. A loop's
    value is its initial operand, its argument, what is yielded and the result, or
    none of them.
    """

    def __init__(self, parts: PartsOp, operands: Operands):
        self.parts = parts
        self.operands = operands
        self.ops: set[Operation] = set()
        self.values: set[SSAValue] = set()

    def include(self, roots: Iterable[Operation]) -> Slice:
        """Add these ops and all that they depend on."""
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
    """Which of the values that a loop carries an argument or result is."""
    if not isinstance(value, BlockArgument):
        return _number(loop.results, value)
    return value.index - 1 if value.index else None


def carried_values(loop: scf.ForOp, position: int) -> list[SSAValue]:
    """All that one value that a loop carries is."""
    block = loop.body.block
    return [
        loop.iter_args[position],
        block.args[position + 1],
        yielded(block)[position],
        loop.results[position],
    ]


def branch_values(branch: scf.IfOp, result: SSAValue) -> list[SSAValue]:
    """What the regions of a branch yield for one of its results."""
    position = _number(branch.results, result)
    blocks = [b for region in branch.regions for b in region.blocks]
    return [yielded(block)[position] for block in blocks]


def _number(values: Sequence[SSAValue], value: SSAValue) -> int:
    return next(i for i, v in enumerate(values) if v is value)


def yielded(block: Block) -> Sequence[SSAValue]:
    """What the block of a loop or a branch yields."""
    last = block.last_op
    assert isinstance(last, scf.YieldOp)
    return last.arguments


def dependent_on(start: SSAValue) -> set[SSAValue]:
    """All values that are computed from a value, it included."""
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
    """What an op computes from its operand of that index."""
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
