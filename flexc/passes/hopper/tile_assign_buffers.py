"""`tile-assign-buffers`: say in which buffer each tile lives.

Runs after `tile-insert-copies`.

1. Values that must share a buffer form a class: what a loop carries (initial
   value, argument, yielded value, result), what the branches of an `scf.if`
   yield, and a product with its accumulator.
2. A class is alive from its first definition to its last use, in program order.
3. Linear scan (Poletto and Sarkar, 1999): each class takes a buffer of its type
   that no living class holds. One that dies where the class is defined will do
   only if the defining op may write over it; then it is preferred.

The buffer of each tile that an op defines becomes its attribute `tile.buffers`;
the kernel's attribute of that name lists the buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects import tile
from flexc.dialects.tile import BUFFERS, BufferAttr, TileType
from flexc.passes.hopper.tile_liveness import (
    ACCUMULATING,
    Lifetimes,
    is_tile,
    overwrites,
)
from flexc.passes.refusal import refuse


@dataclass(eq=False)
class BufferClass:
    """Values that share a buffer."""

    values: list[SSAValue]
    first: int = 0
    last: int = 0
    buffer: int = -1

    @property
    def type(self) -> TileType:
        type_ = self.values[0].type
        assert isinstance(type_, TileType)
        return type_

    @property
    def label(self) -> str:
        return self.values[0].name_hint or "tile"


@dataclass
class BufferClasses:
    """A partition of a kernel's tiles."""

    of: dict[SSAValue, BufferClass] = field(default_factory=dict[SSAValue, BufferClass])

    def find(self, value: SSAValue) -> BufferClass:
        if value not in self.of:
            self.of[value] = BufferClass([value])
        return self.of[value]

    def unite(self, *values: SSAValue) -> None:
        if not is_tile(values[0]):
            return
        first = self.find(values[0])
        for value in values[1:]:
            other = self.find(value)
            if other is first:
                continue
            first.values += other.values
            for member in other.values:
                self.of[member] = first

    def visit(self, block: Block) -> None:
        """Collect the tiles of a block, and unite those that must share."""
        for op in block.ops:
            for value in op.results:
                if is_tile(value):
                    self.find(value)
            if isinstance(op, scf.ForOp):
                self.visit_loop(op)
            elif isinstance(op, scf.IfOp):
                self.visit_branches(op)
            elif isinstance(op, ACCUMULATING) and op.acc is not None:
                self.unite(op.acc, op.result)
            elif op.regions and not isinstance(op, tile.MapOp | tile.PanelMapOp):
                refuse(op, "tile-assign-buffers expects loops, branches and maps only")

    def visit_loop(self, op: scf.ForOp) -> None:
        body = op.body.block
        self.visit(body)
        last = body.last_op
        assert last is not None
        for group in zip(
            op.iter_args, body.args[1:], last.operands, op.results, strict=True
        ):
            self.unite(*group)

    def visit_branches(self, op: scf.IfOp) -> None:
        for region in op.regions:
            for block in region.blocks:
                self.visit(block)
                assert block.last_op is not None
                for result, value in zip(
                    op.results, block.last_op.operands, strict=True
                ):
                    self.unite(result, value)

    def all(self, lifetimes: Lifetimes) -> list[BufferClass]:
        """The classes in order of definition."""
        classes = list(dict.fromkeys(self.of.values()))
        for c in classes:
            c.first = min(lifetimes.definition(v) for v in c.values)
            c.last = max(lifetimes.last_use(v) for v in c.values)
        return sorted(classes, key=lambda c: c.first)


@dataclass
class BufferScan:
    """Assigns buffers to classes in order of definition."""

    classes: BufferClasses
    buffers: list[BufferAttr] = field(default_factory=list[BufferAttr])
    holders: list[BufferClass] = field(default_factory=list[BufferClass])
    """The class that held each buffer last."""

    def assign(self, new: BufferClass) -> None:
        usable = [
            i
            for i, old in enumerate(self.holders)
            if old.type == new.type and self.is_free(old, new)
        ]
        if usable:
            new.buffer = max(usable, key=lambda i: self.preference(i, new))
            self.holders[new.buffer] = new
            return
        new.buffer = len(self.buffers)
        self.buffers.append(BufferAttr(new.label, new.type))
        self.holders.append(new)

    def preference(self, index: int, new: BufferClass) -> tuple[bool, bool, int]:
        """In place at best; else where a tile of that name was, else warm."""
        last = self.holders[index].last
        is_namesake = self.buffers[index].label.data == new.label
        return last == new.first, is_namesake, last

    def is_free(self, old: BufferClass, new: BufferClass) -> bool:
        if old.last != new.first:
            return old.last < new.first
        op = definer(new)
        return op is not None and all(
            overwrites(op, v) for v in op.operands if self.classes.of.get(v) is old
        )


def definer(group: BufferClass) -> Operation | None:
    """The op that defines a class of one value, or its first."""
    owner = group.values[0].owner
    is_plain = isinstance(owner, tile.MapOp | tile.PanelMapOp)
    return owner if isinstance(owner, Operation) and is_plain else None


def assign_buffers(kernel: tile.KernelOp) -> None:
    """Give every tile of a kernel a buffer."""
    block = kernel.body.block
    classes = BufferClasses()
    classes.visit(block)
    scan = BufferScan(classes)
    for group in classes.all(Lifetimes.of(block)):
        scan.assign(group)
    kernel.attributes[BUFFERS] = ArrayAttr(scan.buffers)
    for op in kernel.walk():
        if isinstance(op, scf.ForOp | scf.IfOp):
            continue
        if tiles := [v for v in op.results if is_tile(v)]:
            indices = [classes.of[v].buffer for v in tiles]
            op.attributes[BUFFERS] = DenseArrayBase.from_list(i32, indices)


@dataclass(frozen=True)
class TileAssignBuffersPass(ModulePass):
    """Assign tiles to buffers of fast memory."""

    name = "tile-assign-buffers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                assign_buffers(kernel)
