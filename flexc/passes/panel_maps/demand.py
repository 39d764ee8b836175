"""How many rows of a tile anybody looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from xdsl.ir import Block, Operation, SSAValue, Use

from flexc.dialects import tile
from flexc.dialects.tile import shape_of


class Rows(Enum):
    """No rows at all, or all of them."""

    NONE = "none"
    ALL = "all"


Demand = SSAValue | Rows
"""A count, in which case that many rows, the first."""


def join(a: Demand, b: Demand) -> Demand:
    """What two users look at. Two counts are compared as values only."""
    if a is Rows.NONE or a is b:
        return b
    return a if b is Rows.NONE else Rows.ALL


def is_known_before(count: SSAValue, op: Operation) -> bool:
    """Whether a count is defined where an op runs."""
    owner = count.owner
    if isinstance(owner, Block):
        return owner.find_ancestor_op_in_block(op) is not None
    block = owner.parent_block()
    assert block is not None
    inside = block.find_ancestor_op_in_block(op)
    return inside is not None and owner.is_before_in_block(inside)


@dataclass
class Demands:
    """Rows that users look at, of the tiles of two dimensions of a kernel.

    Products and maps pass on what their own users look at. Anything else, and all
    that a loop carries, is looked at as a whole.
    """

    known: dict[SSAValue, Demand] = field(default_factory=dict[SSAValue, Demand])

    def of(self, value: SSAValue) -> Demand:
        if value not in self.known:
            demand: Demand = Rows.NONE
            for use in value.uses:
                demand = join(demand, self.of_use(use))
            self.known[value] = demand
        return self.known[value]

    def of_use(self, use: Use) -> Demand:
        op, value = use.operation, use.operation.operands[use.index]
        if isinstance(op, tile.RegisterProductOp):
            return self.of_product(op, value)
        if isinstance(op, tile.ReduceOp) and op.dim.value.data == 0:
            return Rows.ALL if op.count is None else op.count
        if isinstance(op, tile.MapOp | tile.PanelMapOp):
            return self.of_map(op)
        if isinstance(op, tile.StoreStridedOp) and op.counted_dim == 0:
            return op.extents[0]
        if isinstance(op, tile.DiagonalsOp) and op.is_transposed:
            return Rows.ALL if op.count is None else op.count
        return Rows.ALL

    def of_product(self, op: tile.RegisterProductOp, value: SSAValue) -> Demand:
        demand: Demand = Rows.NONE
        if value is op.rhs:
            demand = Rows.ALL if op.inner is None else op.inner
        if value in (op.lhs, op.acc):
            rows = self.of(op.result) if op.rows is None else op.rows
            demand = join(demand, rows)
        return demand

    def of_map(self, op: tile.MapOp | tile.PanelMapOp) -> Demand:
        """Of an operand with rows; of others nobody asks."""
        if isinstance(op, tile.PanelMapOp):
            return Rows.ALL if op.count is None else op.count
        demand: Demand = Rows.NONE
        for result in op.results:
            demand = join(demand, self.of(result))
        return demand


def count_for(op: Operation, demands: Demands) -> SSAValue | None:
    """How many rows of an op's results are needed, None for all."""
    demand: Demand = Rows.NONE
    for result in op.results:
        assert len(shape_of(result.type)) > 1
        demand = join(demand, demands.of(result))
    if isinstance(demand, Rows) or not is_known_before(demand, op):
        return None
    return demand
