"""Write the roles of one warp: a producer copies tiles in, a writer adds to memory.

Additions in a fixed order have a writer: it waits for other programs, and consumers
wait for no more than a free slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitCopiesOp,
    AwaitOp,
    CopyInOp,
    CopyOutOp,
    ExpectOp,
    SlotOp,
)
from flexc.errors import ScheduleError
from flexc.passes.hopper.specialize_warps.loads import product_of
from flexc.passes.hopper.specialize_warps.resources import Outgoing, SlotRing
from flexc.passes.hopper.specialize_warps.roles import ORDER_OPS, RoleCode, RolePlan
from flexc.passes.hopper.specialize_warps.slices import Slice, dependent_on


class ServiceCode(RoleCode):
    """The code of a role that serves all parts.

    It computes a value that depends on the part once for each part. Raise
    `ScheduleError` if the choice of tiles depends on the part.
    """

    def __init__(self, plan: RolePlan, roots: Iterable[Operation]):
        self.plan = plan
        self.varying = dependent_on(plan.parts.body.block.args[0])
        needed = Slice(plan.parts, self.operands).include(roots)
        if needed.values & self.varying:
            raise ScheduleError("which tiles are moved depends on the part")
        super().__init__(plan, needed)

    def operands(self, op: Operation) -> Sequence[SSAValue]:
        """Return the values, equal for all parts, that an op depends on."""
        found: list[SSAValue] = []
        for value in self.read(op):
            if value not in self.varying:
                found.append(value)
            elif isinstance(owner := value.owner, Operation):
                found += self.operands(owner)
        return found

    def read(self, op: Operation) -> Sequence[SSAValue]:
        """Return the operands of an op that the role reads."""
        return op.operands

    def at_part(
        self,
        value: SSAValue,
        part: int,
        known: dict[SSAValue, SSAValue],
    ) -> SSAValue:
        """Return a value for one part, recomputed if it depends on the part."""
        if value not in self.varying:
            return self.of(value)
        if value is self.plan.parts.body.block.args[0]:
            return self.const(part)
        if value not in known:
            owner = value.owner
            if isinstance(owner, Block | scf.ForOp | scf.IfOp):
                raise ScheduleError("where a tile lies depends on the part")
            for operand in owner.operands:
                known[operand] = self.at_part(operand, part, known)
            self.code.builder.insert(owner.clone(known))
        return known[value]


class ProducerCode(ServiceCode):
    """The code of the producer, which copies tiles as soon as slots are free."""

    def __init__(self, plan: RolePlan):
        super().__init__(plan, plan.rings)

    def rings(self, rings: Sequence[SlotRing]) -> Sequence[SlotRing]:
        return [ring for ring in rings if ring.loads]

    def load(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Start the copy of a tile, or of one for each part, once a slot is free."""
        slot, full = self.const(0), ring.full
        if ring.stays:
            self.code.builder.insert(ExpectOp(full, slot, ring.slot_bytes))
            for part in range(ring.tiles):
                self.copy(op, ring, self.const(part), slot, part)
            return
        slot, parity = self.take(ring)
        wait = self.await_empty(ring, slot, parity)
        if (comment := product_of(op).attributes.get("comment")) is not None:
            wait.attributes["comment"] = comment
        self.code.builder.insert(ExpectOp(full, slot, ring.slot_bytes))
        self.copy(op, ring, slot, slot, 0)
        for vector, matrix in self.plan.companions.items():
            if matrix is op:
                shared = ring.shared_vectors[vector.tensor]
                view = self.code.insert(SlotOp(shared, slot))
                where = [self.of(v) for v in vector.indices]
                copy = CopyInOp(vector.tensor, where, view, ring.full, slot)
                self.code.builder.insert(copy)

    def copy(
        self,
        op: tile.LoadOp,
        ring: SlotRing,
        slot: SSAValue,
        barrier: SSAValue,
        part: int,
    ) -> None:
        """Start the copy of one part's tile."""
        known: dict[SSAValue, SSAValue] = {}
        indices = [self.at_part(v, part, known) for v in op.indices]
        view = self.code.insert(SlotOp(ring.shared, slot), ring.name)
        copy = CopyInOp(op.tensor, indices, view, ring.full, barrier)
        self.code.builder.insert(copy)


class WriterCode(ServiceCode):
    """The code of the writer, which adds tiles to memory in the order of programs."""

    def __init__(self, plan: RolePlan):
        ends = [o for o in plan.parts.body.walk() if isinstance(o, ORDER_OPS)]
        super().__init__(plan, [*plan.outgoing, *plan.turns.additions, *ends])
        self.seen = self.const(0)

    def rings(self, rings: Sequence[SlotRing]) -> Sequence[SlotRing]:
        return [ring for ring in rings if isinstance(ring, Outgoing)]

    def read(self, op: Operation) -> Sequence[SSAValue]:
        """Return an op's operands, without the tile that is added to memory."""
        if op in self.plan.turns.additions:
            return op.operands[-2:]
        if isinstance(op, tile.AddToOp):
            return [*op.indices, *op.turn]
        return super().read(op)

    def load(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Do nothing: the producer copies tiles in."""

    def leaf(self, op: Operation) -> None:
        if isinstance(op, tile.AddToOp) and op in self.plan.turns.additions:
            self.report(op)
        elif isinstance(op, tile.AddToOp):
            self.add(op, self.plan.outgoing[op])
        else:
            super().leaf(op)

    def report(self, op: tile.AddToOp) -> None:
        """Report the program's progress when consumers have added their tiles."""
        assert op.progress is not None
        turns = self.plan.turns
        number = self.const(turns.additions.index(op))
        self.code.builder.insert(AwaitOp(turns.barriers, number, self.const(0)))
        own, done = map(self.of, op.turn[2:])
        self.code.builder.insert(tile.ReportProgressOp(op.progress, own, done))

    def add(self, op: tile.AddToOp, ring: Outgoing) -> None:
        """Add the tiles of all parts to memory in this program's turn."""
        insert = self.code.builder.insert
        assert op.progress is not None
        assert ring.empty is not None
        assert self.seen is not None
        earlier, least, own, done = map(self.of, op.turn)
        _, parity = self.take(ring)
        parts = [self.const(part) for part in range(ring.tiles)]
        wait = tile.AwaitProgressOp(op.progress, earlier, least, self.seen)
        self.seen = self.code.insert(wait, "seen")
        for number, part in enumerate(parts):
            insert(AwaitOp(ring.full, part, parity))
            known: dict[SSAValue, SSAValue] = {}
            indices = [self.at_part(v, number, known) for v in op.indices]
            view = self.code.insert(SlotOp(ring.shared, part), ring.name)
            insert(CopyOutOp(view, op.memref, indices, adds=True))
        for left, part in zip(reversed(range(ring.tiles)), parts, strict=True):
            insert(AwaitCopiesOp(left))
            insert(ArriveOp(ring.empty, part))
        insert(AwaitCopiesOp(0, written=True))
        insert(tile.ReportProgressOp(op.progress, own, done))
