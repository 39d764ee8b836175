"""The role that copies tiles to shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile.schedule import AwaitOp, CopyInOp, ExpectOp, SlotOp
from flexc.dialects.tile.schedule.capacity import tile_bytes
from flexc.errors import ScheduleError
from flexc.passes.hopper.specialize_warps.copying import Plan, RoleCode
from flexc.passes.hopper.specialize_warps.loads import name_of, product_of
from flexc.passes.hopper.specialize_warps.rings import Ring
from flexc.passes.hopper.specialize_warps.slices import Slice, dependent_on


class ProducerCode(RoleCode):
    """Writes the producer, which copies tiles as soon as there are free slots.

    There is one for all parts: what depends on the part is computed for each of them.
    """

    def __init__(self, plan: Plan):
        self.varying = dependent_on(plan.parts.body.block.args[0])
        needed = Slice(plan.parts, self.operands).include(plan.rings)
        if needed.values & self.varying:
            raise ScheduleError("which tiles are copied depends on the part")
        super().__init__(plan, needed)

    def operands(self, op: Operation) -> Sequence[SSAValue]:
        """What is computed once for all parts of an op's operands."""
        found: list[SSAValue] = []
        for value in op.operands:
            if value not in self.varying:
                found.append(value)
            elif isinstance(owner := value.owner, Operation):
                found += self.operands(owner)
        return found

    def load(self, op: tile.LoadOp, ring: Ring) -> None:
        """Start a copy, or one for each part, when there is room."""
        slot, full = self.const(0), ring.full
        if ring.stays:
            size = ring.slots * tile_bytes(ring.type)
            self.code.builder.insert(ExpectOp(full, slot, size))
            for part in range(ring.slots):
                self.copy(op, ring, self.const(part), slot, part)
            return
        assert ring.empty is not None
        slot, parity = self.take(ring)
        # A phase ends with the use of a slot's tile, and the first tile needs none.
        before = self.code.insert(arith.XOrIOp(parity, self.const(1)))
        wait = AwaitOp(ring.empty, slot, before)
        if (comment := product_of(op).attributes.get("comment")) is not None:
            wait.attributes["comment"] = comment
        self.code.builder.insert(wait)
        self.code.builder.insert(ExpectOp(full, slot, tile_bytes(ring.type)))
        self.copy(op, ring, slot, slot, 0)

    def copy(
        self, op: tile.LoadOp, ring: Ring, slot: SSAValue, barrier: SSAValue, part: int
    ) -> None:
        """Start the copy of a part's tile."""
        known: dict[SSAValue, SSAValue] = {}
        indices = [self.at_part(v, part, known, op) for v in op.indices]
        view = self.code.insert(SlotOp(ring.shared, slot), ring.name)
        copy = CopyInOp(op.tensor, indices, view, ring.full, barrier)
        self.code.builder.insert(copy)

    def at_part(
        self,
        value: SSAValue,
        part: int,
        known: dict[SSAValue, SSAValue],
        op: tile.LoadOp,
    ) -> SSAValue:
        """What a value is for one part, computed anew if it depends on the part."""
        if value not in self.varying:
            return self.of(value)
        if value is self.plan.parts.body.block.args[0]:
            return self.const(part)
        if value not in known:
            owner = value.owner
            if isinstance(owner, Block | scf.ForOp | scf.IfOp):
                raise ScheduleError(f"the place of {name_of(op)} depends on the part")
            for operand in owner.operands:
                known[operand] = self.at_part(operand, part, known, op)
            self.code.builder.insert(owner.clone(known))
        return known[value]
