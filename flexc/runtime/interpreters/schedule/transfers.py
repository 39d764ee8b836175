"""Copies between global and shared memory, which run beside the roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from flexc.runtime.interpreters.memory import store_tile
from flexc.runtime.interpreters.schedule.barriers import Barrier
from flexc.runtime.interpreters.schedule.slots import Read, Slot, Write


@dataclass(eq=False)
class CopyIn:
    """A tile on its way to a slot."""

    tile: Tensor
    slot: Slot
    write: Write
    barrier: Barrier

    def land(self) -> None:
        """Have all bytes there; they are visible when the barrier's phase ends."""
        self.barrier.land(self.slot.size, self._deliver)

    def _deliver(self) -> None:
        self.slot.data.copy_(self.tile)
        self.write.landed = True


@dataclass(eq=False)
class CopyOut:
    """A slot's tile on its way to a memref, where it lands as late as it may."""

    read: Read
    tile: Tensor
    memref: Tensor
    indices: Sequence[Tensor]

    def take(self) -> None:
        """Read the slot, which may change from then on."""
        self.tile = self.tile.clone()

    def store(self) -> None:
        """Write what lies inside the memref."""
        checked = range(self.tile.dim())
        store_tile(self.tile, self.memref, self.indices, tuple(checked))
