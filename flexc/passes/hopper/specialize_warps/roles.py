"""Write the code of a role: that of consumers, and what all roles have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex, tile
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import shape_of
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitCopiesOp,
    AwaitOp,
    CopyOutOp,
    EndOp,
    FenceCopiesOp,
    OfPartOp,
    PartsOp,
    ReadViewOp,
    ShareOp,
    SlotOp,
    TakeColumnsOp,
    TransposeViewOp,
    ViewType,
    WriteViewOp,
)
from flexc.passes.hopper.specialize_warps.loads import Companions
from flexc.passes.hopper.specialize_warps.resources import (
    Outgoing,
    Output,
    SlotRing,
    Turns,
)
from flexc.passes.hopper.specialize_warps.slices import Slice
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_access import index_position


@dataclass(frozen=True)
class RolePlan:
    """Decisions about a kernel that both roles follow."""

    parts: PartsOp
    rings: Mapping[tile.LoadOp, SlotRing]
    exchanges: Mapping[SSAValue, SlotRing]
    """The rings of the tiles that parts share."""
    companions: Companions
    outputs: Mapping[Operation, Output]
    turns: Turns
    released: Mapping[Operation, Sequence[tile.LoadOp]]

    @property
    def consumers(self) -> int:
        return self.parts.count.value.data

    def all_rings(self) -> list[SlotRing]:
        """Return each ring once, in the order of the first load or share of each."""
        rings = [*self.rings.values(), *self.exchanges.values()]
        return list(dict.fromkeys([*rings, *self.outgoing.values()]))

    @property
    def outgoing(self) -> dict[tile.AddToOp, Outgoing]:
        """The slots of the additions that a writer does."""
        return {
            op: output.ring
            for op, output in self.outputs.items()
            if isinstance(op, tile.AddToOp) and isinstance(output.ring, Outgoing)
        }

    def rings_within(self, loop: scf.ForOp) -> list[SlotRing]:
        """Return the rings whose slots change while a loop runs."""
        within = [r for o, r in self.rings.items() if loop.is_ancestor(o)]
        within += [r for v, r in self.exchanges.items() if loop.is_ancestor(v.owner)]
        within += [r for o, r in self.outgoing.items() if loop.is_ancestor(o)]
        return [r for r in dict.fromkeys(within) if not r.stays]


class RoleCode:
    """The code of a role: a slice of the parts, without the loads that are copies.

    Barriers and copies replace these loads. Both roles meet them in the same order.
    Each role counts the tiles that have passed through a ring (`at`) in a number of its
    own that loops carry.
    """

    seen: SSAValue | None = None
    """The progress of another program that the role has seen last, if it awaits any."""

    def __init__(self, plan: RolePlan, needed: Slice):
        self.plan = plan
        self.needed = needed
        self.values: dict[SSAValue, SSAValue] = {}
        block = Block(arg_types=[i32])
        self.part = block.args[0]
        self.part.name_hint = "part"
        self.block = block
        self.code = ScalarCode(block)
        self.constants: dict[int, SSAValue] = {}
        zero = self.const(0)
        self.at = {r: zero for r in self.rings(plan.all_rings()) if not r.stays}

    def write(self) -> Region:
        """Return the role's region."""
        self.copy_block(self.plan.parts.body.block)
        self.finish()
        self.code.builder.insert(EndOp())
        return Region(self.block)

    def finish(self) -> None:
        """Append the role's last ops before its terminator."""

    def rings(self, rings: Sequence[SlotRing]) -> Sequence[SlotRing]:
        """Return those rings whose tiles this role counts."""
        return rings

    def load(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Write what this role does at a load that is a copy."""
        raise NotImplementedError

    def release(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Write what this role does after the last use of a load's tile."""

    def leaf(self, op: Operation) -> None:
        """Copy an op that is neither a loop nor a branch."""
        self.code.builder.insert(op.clone(self.values))

    def copy_block(self, block: Block) -> None:
        """Copy the needed ops of a block without its terminator."""
        for op in block.ops:
            if isinstance(op, tile.LoadOp) and op in self.plan.rings:
                self.load(op, self.plan.rings[op])
            elif isinstance(op, scf.YieldOp | EndOp) or op not in self.needed.ops:
                pass
            elif isinstance(op, scf.ForOp):
                self.loop(op)
            elif isinstance(op, scf.IfOp):
                self.branch(op)
            else:
                self.leaf(op)
            for load in self.plan.released.get(op, ()):
                self.release(load, self.plan.rings[load])

    def loop(self, op: scf.ForOp) -> None:
        """Copy a loop that carries the needed values and its rings' tile counts."""
        kept = self.kept(op.results)
        rings = self.rings(self.plan.rings_within(op))
        carried = [self.of(op.iter_args[i]) for i in kept]
        carried += self.state(rings)
        args = op.body.block.args
        body = Block(arg_types=[args[0].type, *(v.type for v in carried)])
        for old, new in zip(
            [args[0], *(args[i + 1] for i in kept)], body.args, strict=False
        ):
            self.map(old, new)
        self.set_state(rings, body.args[len(kept) + 1 :])
        outer, self.code = self.code, ScalarCode(body)
        self.copy_block(op.body.block)
        results = [self.of(yielded(op.body.block)[i]) for i in kept]
        self.code.builder.insert(scf.YieldOp(*results, *self.state(rings)))
        self.code = outer
        bounds = self.of(op.lb), self.of(op.ub), self.of(op.step)
        new_loop = scf.ForOp(*bounds, carried, Region(body))
        new_loop.attributes = dict(op.attributes)
        self.code.builder.insert(new_loop)
        for i, new in zip(kept, new_loop.results, strict=False):
            self.map(op.results[i], new)
        self.set_state(rings, new_loop.results[len(kept) :])

    def branch(self, op: scf.IfOp) -> None:
        """Copy a branch with the results that this role needs."""
        kept = self.kept(op.results)
        outer = self.code
        regions: list[Region] = []
        for old in op.regions:
            regions.append(Region(Block() if old.blocks else ()))
            if not old.blocks:
                continue
            self.code = ScalarCode(regions[-1].block)
            self.copy_block(old.block)
            results = [self.of(yielded(old.block)[i]) for i in kept]
            self.code.builder.insert(scf.YieldOp(*results))
        self.code = outer
        types = [op.results[i].type for i in kept]
        new = scf.IfOp(self.of(op.cond), types, regions[0], regions[1])
        new.attributes = dict(op.attributes)
        self.code.builder.insert(new)
        for i, result in zip(kept, new.results, strict=True):
            self.map(op.results[i], result)

    def kept(self, results: Sequence[SSAValue]) -> list[int]:
        """Return the indices of the results that this role needs."""
        return [i for i, r in enumerate(results) if r in self.needed.values]

    def of(self, value: SSAValue) -> SSAValue:
        """Return this role's copy of a value, or an outer value itself."""
        return self.values.get(value, value)

    def map(self, old: SSAValue, new: SSAValue) -> None:
        """Record `new` as this role's copy of `old`."""
        self.values[old] = new
        new.name_hint = old.name_hint

    def const(self, value: int) -> SSAValue:
        """Return a constant that is defined once, at the start of the role."""
        if value not in self.constants:
            code = ScalarCode(InsertPoint.at_start(self.block))
            self.constants[value] = code.const(value)
            self.constants[value].name_hint = f"c{value}"
        return self.constants[value]

    def take(self, ring: SlotRing) -> tuple[SSAValue, SSAValue]:
        """Return the slot and the phase's parity of a ring's next tile; count it."""
        at = self.at[ring]
        place = self.place(ring, at)
        if (number := int_constant(at)) is not None:
            self.at[ring] = self.const(number + 1)
        else:
            self.at[ring] = self.code.add(at, self.const(1), f"{ring.name}_at")
        return place

    def place(self, ring: SlotRing, at: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the slot and the phase's parity of a ring's tile number `at`."""
        last = ring.slots - 1
        if (number := int_constant(at)) is not None:
            turn, place = divmod(number, ring.slots)
            return self.const(place), self.const(turn & 1)
        name, code = ring.name, self.code
        slot = self.const(0)
        if last:
            slot = code.and_(at, self.const(last))
            slot.name_hint = f"{name}_slot"
        turn = at
        if last:
            turn = code.insert(arith.ShRSIOp(at, self.const(last.bit_length())))
        parity = code.and_(turn, self.const(1))
        parity.name_hint = f"{name}_parity"
        return slot, parity

    def await_empty(self, ring: SlotRing, slot: SSAValue, parity: SSAValue) -> AwaitOp:
        """Append the wait until the previous tile of a slot has been read.

        The first tile of a slot has nothing to wait for; each use of a tile ends a
        phase.
        """
        assert ring.empty is not None
        if (number := int_constant(parity)) is not None:
            before = self.const(1 - number)
        else:
            before = self.code.insert(arith.XOrIOp(parity, self.const(1)))
        wait = AwaitOp(ring.empty, slot, before)
        self.code.builder.insert(wait)
        return wait

    def state(self, rings: Sequence[SlotRing]) -> list[SSAValue]:
        """Return the numbers of the role's own that a loop carries."""
        counts = [self.at[ring] for ring in rings]
        return counts if self.seen is None else [*counts, self.seen]

    def set_state(self, rings: Sequence[SlotRing], values: Sequence[SSAValue]) -> None:
        """Replace what `state` returns."""
        if self.seen is not None:
            *values, self.seen = values
            self.seen.name_hint = "seen"
        for ring, value in zip(rings, values, strict=True):
            value.name_hint = f"{ring.name}_at"
            self.at[ring] = value


class ConsumerCode(RoleCode):
    """The code of a consumer, which waits for tiles, uses and releases them."""

    def __init__(self, plan: RolePlan):
        self.staged = plan.rings
        self.plan = plan
        writes = [
            o
            for o in plan.parts.body.walk()
            if writes_memory(o) and not isinstance(o, ORDER_OPS)
        ]
        needed = Slice(plan.parts, self.operands).include([*plan.rings, *writes])
        super().__init__(plan, needed)
        self.values[plan.parts.body.block.args[0]] = self.part
        self.slots: dict[tile.LoadOp, SSAValue] = {}
        self.turn_seen = self.const(0)
        self.awaited: set[tuple[SSAValue, Block]] = set()
        """The shared values that were awaited, with the blocks of the waits."""

    def operands(self, op: Operation) -> Sequence[SSAValue]:
        """Return an op's operands that consumers need, not the producer or writer."""
        if isinstance(op, tile.AddToOp) and op in self.plan.outgoing:
            return [op.value]
        if op in self.plan.turns.additions:
            return op.operands[:-2]
        is_copied = op in self.staged or op in self.plan.companions
        return () if is_copied else op.operands

    def load(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Write the wait for a tile; map the load's result to a view of the slot."""
        if ring.stays:
            barrier = parity = self.const(0)
            slot = self.part if ring.per_part else self.const(0)
        else:
            slot, parity = self.take(ring)
            barrier = self.slots[op] = slot
        self.code.builder.insert(AwaitOp(ring.full, barrier, parity))
        view = self.code.insert(SlotOp(ring.shared, slot))
        self.map(op.result, view)

    def release(self, op: tile.LoadOp, ring: SlotRing) -> None:
        """Write the arrival at the barrier that gives the load's slot back."""
        if ring.empty is not None:
            slot = self.slots[op]
            arrive = ArriveOp(ring.empty, slot, after_products=True)
            self.code.builder.insert(arrive)

    def leaf(self, op: Operation) -> None:
        """Copy an op; views of views are views, some stores become copies."""
        of_view = bool(op.operands) and isinstance(
            self.of(op.operands[0]).type, ViewType
        )
        match op:
            case tile.AddToOp() if op in self.plan.outgoing:
                self.hand_over(op, self.plan.outgoing[op])
            case tile.AddToOp() if op in self.plan.turns.additions:
                self.add_in_turn(op)
            case tile.StoreOp() if op in self.plan.outputs and op.below is not None:
                self.copy_whole(op, op.below, self.plan.outputs[op])
            case tile.StoreOp() | tile.AddToOp() if op in self.plan.outputs:
                self.copy_out(op, self.plan.outputs[op])
            case tile.TransposeOp() if of_view:
                view = self.code.insert(TransposeViewOp(self.of(op.input)))
                self.map(op.result, view)
            case TakeColumnsOp() if of_view:
                number = self.of(op.number)
                count = op.count.value.data
                taken = TakeColumnsOp(self.of(op.source), number, count)
                self.map(op.result, self.code.insert(taken))
            case tile.LoadOp() if op in self.plan.companions:
                self.read_vector(op)
            case ShareOp():
                if op.result in self.plan.exchanges:
                    self.share(op, self.plan.exchanges[op.result])
            case OfPartOp():
                self.map(op.result, self.shared_tile(op))
            case _:
                super().leaf(op)

    def read_vector(self, op: tile.LoadOp) -> None:
        """Read a vector from the slot that also holds a matrix."""
        matrix = self.plan.companions[op]
        shared = self.plan.rings[matrix].shared_vectors[op.tensor]
        view = self.code.insert(SlotOp(shared, self.slots[matrix]))
        self.map(op.result, self.code.insert(ReadViewOp(view)))

    def share(self, op: ShareOp, ring: SlotRing) -> None:
        """Write this part's tile to the ring; map the result to the tile's number."""
        number = self.at[ring]
        slot, _ = self.take(ring)
        view = self.view(ring, slot, self.part)
        self.code.builder.insert(WriteViewOp(self.of(op.value), view))
        self.code.builder.insert(FenceCopiesOp())
        self.code.builder.insert(ArriveOp(ring.full, slot))
        self.map(op.result, number)

    def shared_tile(self, op: OfPartOp) -> SSAValue:
        """Return a view of the tile that a part shared, which is awaited once."""
        if op.shares not in self.plan.exchanges:
            assert isinstance(op.shares.owner, ShareOp)
            load = op.shares.owner.value.owner
            assert isinstance(load, tile.LoadOp)
            ring = self.plan.rings[load]
            slot = self.const(0) if ring.stays else self.slots[load]
            return self.view(ring, slot, self.of(op.number))
        ring = self.plan.exchanges[op.shares]
        slot, parity = self.place(ring, self.of(op.shares))
        block = op.parent_block()
        assert block is not None
        if (op.shares, block) not in self.awaited:
            self.awaited.add((op.shares, block))
            self.code.builder.insert(AwaitOp(ring.full, slot, parity))
        return self.view(ring, slot, self.of(op.number))

    def view(self, ring: SlotRing, slot: SSAValue, part: SSAValue) -> SSAValue:
        """Return a view of a part's tile in a slot."""
        first = self.code.mul(slot, self.const(ring.tiles))
        return self.code.insert(SlotOp(ring.shared, self.code.add(first, part)))

    def copy_out(self, op: tile.StoreOp | tile.AddToOp, output: Output) -> None:
        """Write a tile to an unused slot, and start its copy to global memory."""
        if output.is_reused:
            self.code.builder.insert(AwaitCopiesOp(0))
        view = self.fill(op, output.shared, output.name)
        indices = [self.of(v) for v in op.indices]
        adds = isinstance(op, tile.AddToOp)
        self.code.builder.insert(CopyOutOp(view, op.memref, indices, adds))

    def copy_whole(self, op: tile.StoreOp, below: SSAValue, output: Output) -> None:
        """Copy a tile if all of its rows are written, else store it from registers."""
        rows = self.const(shape_of(op.value.type)[0])
        end = self.code.add(self.of(op.operands[index_position(op, 0)]), rows)
        is_whole = self.code.cmp("sle", end, self.of(below))
        is_whole.name_hint = "is_whole"
        outer, regions = self.code, (Region(Block()), Region(Block()))
        self.code = ScalarCode(regions[0].block)
        self.copy_out(op, output)
        self.code.builder.insert(scf.YieldOp())
        self.code = ScalarCode(regions[1].block)
        super().leaf(op)
        self.code.builder.insert(scf.YieldOp())
        self.code = outer
        self.code.builder.insert(scf.IfOp(is_whole, [], *regions))

    def hand_over(self, op: tile.AddToOp, ring: Outgoing) -> None:
        """Write a tile to this part's slot once it is free, and signal the writer."""
        _, parity = self.take(ring)
        self.await_empty(ring, self.part, parity)
        self.fill(op, ring.shared, ring.name)
        self.code.builder.insert(ArriveOp(ring.full, self.part))

    def add_in_turn(self, op: tile.AddToOp) -> None:
        """Add a tile to memory in this program's turn, and signal the writer."""
        assert op.progress is not None
        earlier, least = map(self.of, op.turn[:2])
        number = self.plan.turns.additions.index(op)
        wait = tile.AwaitProgressOp(op.progress, earlier, least, self.turn_seen)
        self.turn_seen = self.code.insert(wait, "seen")
        value, indices = self.of(op.value), [self.of(v) for v in op.indices]
        checked = op.checked.get_values()
        add = tile.AddToOp(value, op.memref, indices, None, checked, atomic=True)
        self.code.builder.insert(add)
        arrive = ArriveOp(self.plan.turns.barriers, self.const(number))
        self.code.builder.insert(arrive)

    def fill(
        self, op: tile.StoreOp | tile.AddToOp, shared: SSAValue, name: str
    ) -> SSAValue:
        """Write a tile to this part's slot for a copy out; return the slot's view."""
        view = self.code.insert(SlotOp(shared, self.part), f"{name}_view")
        self.code.builder.insert(WriteViewOp(self.of(op.value), view))
        self.code.builder.insert(FenceCopiesOp())
        return view

    def finish(self) -> None:
        """Append the wait for all of the consumer's copies out of shared memory."""
        if self.plan.outputs.keys() - self.plan.outgoing.keys():
            self.code.builder.insert(AwaitCopiesOp(0))


ORDER_OPS = (tile.AwaitProgressOp, tile.ReportProgressOp)
"""Ops of the order in which programs add to memory: the writer's."""


def writes_memory(op: Operation) -> bool:
    """Return True if an op has no results and is no terminator."""
    return not op.results and not isinstance(op, scf.YieldOp | flex.YieldOp | EndOp)
