"""Copying what a role needs of a program's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import tile
from flexc.dialects.tile.schedule import EndOp, PartsOp
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.passes.hopper.specialize_warps.outputs import Output
from flexc.passes.hopper.specialize_warps.rings import Ring
from flexc.passes.hopper.specialize_warps.slices import Slice, yielded
from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(frozen=True)
class Plan:
    """What was decided of a kernel, for both roles."""

    parts: PartsOp
    rings: Mapping[tile.LoadOp, Ring]
    outputs: Mapping[tile.StoreOp, Output]
    released: Mapping[Operation, Sequence[tile.LoadOp]]

    @property
    def consumers(self) -> int:
        return self.parts.count.value.data

    def all_rings(self) -> list[Ring]:
        """Each ring once, in the order of its first load."""
        return list(dict.fromkeys(self.rings.values()))

    def rings_within(self, loop: scf.ForOp) -> list[Ring]:
        """The rings whose slots change while a loop runs."""
        within = [r for o, r in self.rings.items() if loop.is_ancestor(o)]
        return [r for r in dict.fromkeys(within) if not r.stays]


class RoleCode:
    """Writes a role: what it needs of the parts, with something in place of loads.

    Both roles meet the same loads in the same order. Each counts for itself how many
    tiles have passed through a ring, in a number that loops carry.
    """

    def __init__(self, plan: Plan, needed: Slice):
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
        self.at = {r: zero for r in plan.all_rings() if not r.stays}

    def write(self) -> Region:
        """The role's region."""
        self.copy_block(self.plan.parts.body.block)
        self.finish()
        self.code.builder.insert(EndOp())
        return Region(self.block)

    def finish(self) -> None:
        """Append what comes last."""

    def load(self, op: tile.LoadOp, ring: Ring) -> None:
        """Write what this role does where a tile is copied."""
        raise NotImplementedError

    def release(self, op: tile.LoadOp, ring: Ring) -> None:
        """Write what this role does when a tile was used for the last time."""

    def leaf(self, op: Operation) -> None:
        """Copy an op that is neither a loop nor a branch."""
        self.code.builder.insert(op.clone(self.values))

    def copy_block(self, block: Block) -> None:
        """Copy what is needed of a block but its terminator."""
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
        """Copy a loop that carries what this role needs, and where rings are."""
        kept = self.kept(op.results)
        rings = self.plan.rings_within(op)
        carried = [self.of(op.iter_args[i]) for i in kept]
        carried += [self.at[r] for r in rings]
        args = op.body.block.args
        body = Block(arg_types=[args[0].type, *(v.type for v in carried)])
        for old, new in zip(
            [args[0], *(args[i + 1] for i in kept)], body.args, strict=False
        ):
            self.map(old, new)
        self._set_at(rings, body.args[len(kept) + 1 :])
        outer, self.code = self.code, ScalarCode(body)
        self.copy_block(op.body.block)
        results = [self.of(yielded(op.body.block)[i]) for i in kept]
        self.code.builder.insert(scf.YieldOp(*results, *(self.at[r] for r in rings)))
        self.code = outer
        bounds = self.of(op.lb), self.of(op.ub), self.of(op.step)
        new_loop = scf.ForOp(*bounds, carried, Region(body))
        new_loop.attributes = dict(op.attributes)
        self.code.builder.insert(new_loop)
        for i, new in zip(kept, new_loop.results, strict=False):
            self.map(op.results[i], new)
        self._set_at(rings, new_loop.results[len(kept) :])

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
        """The results that this role needs."""
        return [i for i, r in enumerate(results) if r in self.needed.values]

    def of(self, value: SSAValue) -> SSAValue:
        """This role's copy of a value; a value from outside is its own."""
        return self.values.get(value, value)

    def map(self, old: SSAValue, new: SSAValue) -> None:
        """Let `new` be this role's copy of `old`."""
        self.values[old] = new
        new.name_hint = old.name_hint

    def const(self, value: int) -> SSAValue:
        """A constant, made at the start of the role."""
        if value not in self.constants:
            code = ScalarCode(InsertPoint.at_start(self.block))
            self.constants[value] = code.const(value)
            self.constants[value].name_hint = f"c{value}"
        return self.constants[value]

    def take(self, ring: Ring) -> tuple[SSAValue, SSAValue]:
        """The slot of a ring's next tile, and the parity of its phase there."""
        at, last = self.at[ring], ring.slots - 1
        if (number := constant_of(at)) is not None:
            self.at[ring] = self.const(number + 1)
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
        self.at[ring] = code.add(at, self.const(1), f"{name}_at")
        return slot, parity

    def _set_at(self, rings: Sequence[Ring], values: Sequence[SSAValue]) -> None:
        for ring, value in zip(rings, values, strict=True):
            value.name_hint = f"{ring.name}_at"
            self.at[ring] = value
