"""Which stores go through shared memory, as one asynchronous copy each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType
from flexc.dialects.tile.schedule import PartsOp, SharedOp, SharedType
from flexc.dialects.tile.schedule.capacity import tile_bytes
from flexc.passes.hopper.specialize_warps.loads import why_not_tma
from flexc.passes.hopper.specialize_warps.placing import released_after
from flexc.passes.hopper.specialize_warps.rings import Ring
from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(eq=False)
class Output:
    """The slots, one for each part, that a store's tile leaves through.

    Those of `ring`, where all that read its tiles is done by then, or its own.
    """

    name: str
    type: TileType
    parts: int
    ring: Ring | None
    shared: SSAValue = field(init=False)

    @property
    def bytes(self) -> int:
        return 0 if self.ring else self.parts * tile_bytes(self.type)

    def allocate(self, code: ScalarCode) -> None:
        """Append what makes its slots, if it has some of its own."""
        if self.ring is not None:
            self.shared = self.ring.shared
        else:
            shared = SharedOp(SharedType(self.parts, self.type))
            self.shared = code.insert(shared, f"{self.name}_s")


def assign_outputs(
    kernel: tile.KernelOp, parts: PartsOp, rings: Collection[Ring]
) -> dict[tile.StoreOp, Output]:
    """The stores of a program's end that TMA can do, and where their tiles are put."""
    free = [r for r in rings if r.stays and r.slots == parts.count.value.data]
    outputs: dict[tile.StoreOp, Output] = {}
    for store in parts.body.block.ops:
        type_ = store.value.type if isinstance(store, tile.StoreOp) else None
        if not isinstance(store, tile.StoreOp) or not isinstance(type_, TileType):
            continue
        if why_not_tma(kernel, store.memref, type_) is not None:
            continue
        ring = next((r for r in free if r.type == type_ and _is_read(r, store)), None)
        if ring is not None:
            free.remove(ring)
        name = store.value.name_hint or store.memref.name_hint or "out"
        outputs[store] = Output(name, type_, parts.count.value.data, ring)
    return outputs


def _is_read(ring: Ring, store: tile.StoreOp) -> bool:
    """Whether all that reads a ring's tiles comes before a store."""
    return all(op.is_before_in_block(store) for op in released_after(ring.loads))
