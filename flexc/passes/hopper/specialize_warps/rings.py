"""Slots and barriers for what is copied to shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType
from flexc.dialects.tile.schedule import (
    BarriersOp,
    BarriersType,
    PartsOp,
    SharedOp,
    SharedType,
)
from flexc.dialects.tile.schedule.capacity import BARRIER_BYTES, tile_bytes
from flexc.errors import ScheduleError
from flexc.passes.hopper.specialize_warps.loads import name_of
from flexc.passes.hopper.specialize_warps.slices import dependent_on
from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(eq=False)
class Ring:
    """Slots that the tiles of some loads pass through, in program order.

    `full` barriers say that a slot's tile is there, `empty` ones that all consumers are
    done with it. Where a load is executed once its tile stays: nothing is ever empty,
    and one barrier says that all slots are full. If its place depends on the part,
    there is a slot for each part.
    """

    name: str
    type: TileType
    slots: int
    stays: bool
    per_part: bool
    loads: list[tile.LoadOp] = field(default_factory=list[tile.LoadOp])
    shared: SSAValue = field(init=False)
    full: SSAValue = field(init=False)
    empty: SSAValue | None = field(default=None, init=False)

    @property
    def bytes(self) -> int:
        """What all slots and barriers take."""
        barriers = 1 if self.stays else 2 * self.slots
        return self.slots * tile_bytes(self.type) + barriers * BARRIER_BYTES

    def allocate(self, code: ScalarCode, consumers: int) -> None:
        """Append the ops that make slots and barriers."""
        shared = SharedOp(SharedType(self.slots, self.type))
        self.shared = code.insert(shared, f"{self.name}_s")
        count = 1 if self.stays else self.slots
        full = BarriersOp(BarriersType(count, 1))
        self.full = code.insert(full, f"{self.name}_full")
        if not self.stays:
            empty = BarriersOp(BarriersType(count, consumers))
            self.empty = code.insert(empty, f"{self.name}_empty")


class Key(NamedTuple):
    """What loads of one ring have in common."""

    tensor: SSAValue
    type: TileType
    per_part: bool


def assign_rings(
    parts: PartsOp, staged: Sequence[tile.LoadOp], slots: int
) -> dict[tile.LoadOp, Ring]:
    """A ring for each load; those in loops share one with their tensor's others."""
    varying = dependent_on(parts.body.block.args[0])
    in_loops: dict[Key, str] = {}
    for load in staged:
        if isinstance(load.parent_op(), scf.ForOp):
            in_loops.setdefault(_key(load, varying), _name(load))
    rings: dict[tile.LoadOp, Ring] = {}
    shared: dict[Key, Ring] = {}
    for load in staged:
        key = _key(load, varying)
        ring = shared.get(key)
        if ring is None:
            count = parts.count.value.data if key.per_part else 1
            ring = Ring(_name(load), key.type, count, True, key.per_part)
            if key in in_loops:
                if key.per_part:
                    raise ScheduleError(
                        f"a load of {name_of(load)} in a loop depends on the part"
                    )
                ring = Ring(in_loops[key], key.type, slots, False, False)
                shared[key] = ring
        ring.loads.append(load)
        rings[load] = ring
    return rings


def _key(load: tile.LoadOp, varying: set[SSAValue]) -> Key:
    assert isinstance(load.result.type, TileType)
    per_part = any(v in varying for v in load.indices)
    return Key(load.tensor, load.result.type, per_part)


def _name(load: tile.LoadOp) -> str:
    return load.result.name_hint or load.tensor.name_hint or "tile"
