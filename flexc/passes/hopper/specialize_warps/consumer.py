"""The role that computes: one copy for each part."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitCopiesOp,
    AwaitOp,
    CopyOutOp,
    EndOp,
    FenceCopiesOp,
    SlotOp,
    TransposeViewOp,
    ViewType,
    WriteViewOp,
)
from flexc.passes.hopper.specialize_warps.copying import Plan, RoleCode
from flexc.passes.hopper.specialize_warps.outputs import Output
from flexc.passes.hopper.specialize_warps.rings import Ring
from flexc.passes.hopper.specialize_warps.slices import Slice


class ConsumerCode(RoleCode):
    """Writes a consumer, which waits for tiles, uses them and gives slots back."""

    def __init__(self, plan: Plan):
        self.staged = plan.rings
        writes = [o for o in plan.parts.body.walk() if writes_memory(o)]
        needed = Slice(plan.parts, self.operands).include([*plan.rings, *writes])
        super().__init__(plan, needed)
        self.values[plan.parts.body.block.args[0]] = self.part
        self.slots: dict[tile.LoadOp, SSAValue] = {}

    def operands(self, op: Operation) -> Sequence[SSAValue]:
        """Consumers need not know where tiles come from."""
        return () if op in self.staged else op.operands

    def load(self, op: tile.LoadOp, ring: Ring) -> None:
        """Wait for a tile."""
        if ring.stays:
            barrier = parity = self.const(0)
            slot = self.part if ring.per_part else self.const(0)
        else:
            slot, parity = self.take(ring)
            barrier = self.slots[op] = slot
        self.code.builder.insert(AwaitOp(ring.full, barrier, parity))
        view = self.code.insert(SlotOp(ring.shared, slot))
        self.map(op.result, view)

    def release(self, op: tile.LoadOp, ring: Ring) -> None:
        """Give a slot back."""
        if ring.empty is not None:
            self.code.builder.insert(ArriveOp(ring.empty, self.slots[op]))

    def leaf(self, op: Operation) -> None:
        """Copy an op, on places in shared memory where these hold its operands."""
        if isinstance(op, tile.StoreOp) and op in self.plan.outputs:
            self.copy_out(op, self.plan.outputs[op])
        elif isinstance(op, tile.TransposeOp) and isinstance(
            self.of(op.input).type, ViewType
        ):
            view = self.code.insert(TransposeViewOp(self.of(op.input)))
            self.map(op.result, view)
        else:
            super().leaf(op)

    def copy_out(self, op: tile.StoreOp, output: Output) -> None:
        """Start to copy a tile out from a slot that nobody uses any more."""
        view = self.code.insert(SlotOp(output.shared, self.part), f"{output.name}_view")
        self.code.builder.insert(WriteViewOp(self.of(op.value), view))
        self.code.builder.insert(FenceCopiesOp())
        indices = [self.of(v) for v in op.indices]
        self.code.builder.insert(CopyOutOp(view, op.memref, indices))

    def finish(self) -> None:
        """Wait until all has left."""
        if self.plan.outputs:
            self.code.builder.insert(AwaitCopiesOp(0))


def writes_memory(op: Operation) -> bool:
    """Whether an op is there for what it does, not for its results."""
    return not op.results and not isinstance(op, scf.YieldOp | flex.YieldOp | EndOp)
