"""Find definitions and lifetimes of tiles, and ops that may overwrite an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue, Use

from flexc.dialects import tile
from flexc.dialects.tile import TileType

ACCUMULATING = (tile.RegisterProductOp, tile.StreamProductOp)
"""Products whose result shares the buffer of the accumulator."""


def is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def defined_by(op: Operation) -> list[SSAValue]:
    """Return the results of an op and the arguments of its blocks."""
    args = (a for region in op.regions for b in region.blocks for a in b.args)
    return [*op.results, *args]


def yielded(block: Block) -> Sequence[SSAValue]:
    """Return the operands of a block's terminator."""
    assert block.last_op is not None
    return block.last_op.operands


def defining_block(value: SSAValue) -> Block:
    """Return the block in which a value is defined."""
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent_block()
    assert block is not None
    return block


def user_in(block: Block, use: Use) -> Operation:
    """Return the op of a block that is a use's op or contains that op."""
    op = block.find_ancestor_op_in_block(use.operation)
    assert op is not None
    return op


def overwrites(op: Operation, value: SSAValue) -> bool:
    """Return True if an op may write its result over an operand that it reads.

    A map may if it reads each element before it writes the same element. A product may
    overwrite its accumulator. A loop overwrites its initial values.
    """
    if isinstance(op, tile.MapOp | tile.PanelMapOp):
        whole = tuple(range(len(op.shape)))
        spans = {op.span(i) for i, v in enumerate(op.inputs) if v is value}
        return spans == {whole}
    if isinstance(op, ACCUMULATING):
        return value is op.acc and value not in (op.lhs, op.rhs)
    return isinstance(op, scf.ForOp) and list(op.operands).count(value) == 1


def dies_at(value: SSAValue, op: Operation) -> bool:
    """Return True if an op in a value's own block is the last to use the value.

    A loop whose body uses the value is not: the body uses the value repeatedly.
    """
    block = defining_block(value)
    if op.parent_block() is not block:
        return False
    users = [(u.operation, user_in(block, u)) for u in value.uses]
    return all(
        not op.is_before_in_block(outer) and (outer is not op or inner is op)
        for inner, outer in users
    )


@dataclass
class Lifetimes:
    """Positions in program order of ops, definitions and last uses.

    A value that a loop uses but does not define lives until the loop ends. The
    arguments of a loop are defined where the loop starts, its results where the loop
    ends.
    """

    start: dict[Operation, int] = field(default_factory=dict[Operation, int])
    end: dict[Operation, int] = field(default_factory=dict[Operation, int])
    count: int = 0

    @classmethod
    def of(cls, block: Block) -> Lifetimes:
        lifetimes = cls()
        lifetimes.visit(block)
        return lifetimes

    def visit(self, block: Block) -> None:
        for op in block.ops:
            self.start[op] = self.count
            self.count += 1
            if isinstance(op, scf.ForOp | scf.IfOp):
                for region in op.regions:
                    for inner in region.blocks:
                        self.visit(inner)
            self.end[op] = self.count
            self.count += 1

    def definition(self, value: SSAValue) -> int:
        owner = value.owner
        if isinstance(owner, Block):
            parent = owner.parent_op()
            assert parent is not None
            return self.start[parent]
        is_loop = isinstance(owner, scf.ForOp | scf.IfOp)
        return self.end[owner] if is_loop else self.start[owner]

    def last_use(self, value: SSAValue) -> int:
        block = defining_block(value)
        return max(
            (self._use(block, use) for use in value.uses),
            default=self.definition(value),
        )

    def _use(self, block: Block, use: Use) -> int:
        user = user_in(block, use)
        return self.start[user] if user is use.operation else self.end[user]
