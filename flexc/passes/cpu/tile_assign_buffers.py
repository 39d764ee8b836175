"""`tile-insert-copies` and `tile-assign-buffers`: give each tile a buffer.

`tile-insert-copies` lets every tile that a loop carries stay in one buffer. The initial
value, the loop's argument, the yielded value and the result share that buffer. This is
sound if none of them is alive while another is written. In the cases below that does
not hold, and the pass inserts a copy (for a constant tile, another constant tile).

1. An initial value that is used elsewhere, or already carried.
2. A yielded value that the body does not compute: a value from outside the loop,
   another argument, or a value yielded twice.
3. A yielded value that is computed before the argument's last use, unless the op that
   computes it may overwrite the argument.

The rule that yielded values are computed in the block also holds for the branches of an
`scf.if`, with one exception: a branch may yield a tile from before the branches, which
then stays where it is, if nothing else uses it later and the other branch computes its
own after its last use. A product with an accumulator updates its operand's buffer, and
so needs an operand whose last use is the product. Any other operand is copied before
the product.

`tile-assign-buffers` then assigns a buffer to each tile.

1. Values that must share a buffer form a class: the values of a loop-carried variable,
   the values that the branches of an `scf.if` yield, and a product with its
   accumulator.
2. A class is alive from its first definition to its last use, in program order.
3. Linear scan (Poletto and Sarkar, 1999): each class takes a buffer of its type that no
   live class holds. A buffer whose class is last used by the defining op is allowed
   only if that op may overwrite it; then that buffer is preferred.

The attribute `tile.buffers` of an op has the buffer of each tile that the op defines.
The kernel's attribute of that name lists the buffers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, i32
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint
from xdsl.utils.disjoint_set import DisjointSet

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import BUFFERS, BufferAttr, TileType, shape_of
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_values import (
    ACCUMULATING,
    Lifetimes,
    defined_values,
    defining_block,
    dies_at,
    is_tile,
    overwrites,
    user_in,
)


def duplicate(value: SSAValue, before: Operation, moves: bool = False) -> SSAValue:
    """Return a new definition of the same tile.

    If it `moves`, the two buffers may be exchanged in place of a copy.
    """
    code = ScalarCode(InsertPoint.before(before))
    owner = value.owner
    if isinstance(owner, tile.FullOp):
        return code.insert(owner.clone(), value.name_hint)
    return code.insert(tile.CopyOp(value, moves), value.name_hint)


def written_over(op: Operation) -> range:
    """Return the indices of the operands whose buffers an op updates."""
    end = len(op.operands)
    if isinstance(op, scf.ForOp):
        return range(3, end)
    accumulates = isinstance(op, ACCUMULATING) and op.acc is not None
    return range(end - accumulates, end)


def copy_overwritten(op: Operation) -> None:
    """Copy operands that an op overwrites but that live on."""
    for index in written_over(op):
        value = op.operands[index]
        if is_tile(value) and not (dies_at(value, op) and overwrites(op, value)):
            op.operands[index] = duplicate(value, op)


def copy_yielded(body: Block, args: Sequence[BlockArgument | None]) -> None:
    """Copy yielded tiles that cannot be in the buffers of the block's arguments."""
    last = body.last_op
    assert last is not None
    for index, value in enumerate(last.operands):
        is_own = defining_block(value) is body and value.owner is not body
        is_new = value not in last.operands[:index]
        if is_tile(value) and value is not args[index] and not (is_own and is_new):
            last.operands[index] = duplicate(value, last)
    for index, (value, arg) in enumerate(zip(last.operands, args, strict=True)):
        if arg is None or value is arg or not is_tile(value):
            continue
        if not _follows(value, arg, body):
            moves = value.has_one_use() and len(shape_of(value.type)) > 1
            last.operands[index] = duplicate(value, last, moves)


def copy_branches(op: scf.IfOp) -> None:
    """Copy yielded tiles of branches, except those that stay where they are."""
    blocks = [region.block for region in op.regions]
    for block, other in zip(blocks, blocks[::-1], strict=True):
        last = block.last_op
        assert last is not None
        for index, (value, rival) in enumerate(
            zip(last.operands, yielded(other), strict=True)
        ):
            is_new = value not in last.operands[:index]
            is_own = defining_block(value) is block
            stays = is_own or stays_in_place(value, rival, op, other)
            if is_tile(value) and not (is_new and stays):
                last.operands[index] = duplicate(value, last)


def stays_in_place(
    value: SSAValue, rival: SSAValue, op: scf.IfOp, other: Block
) -> bool:
    """Return True if a branch may yield a tile that is defined before the branches.

    Nothing else may use the tile later, and the other branch must compute `rival`,
    which it yields in its place, after its own last use of the tile.
    """
    block = op.parent_block()
    if block is None or not is_tile(value) or defining_block(value) is not block:
        return False
    if any(op.is_before_in_block(user_in(block, use)) for use in value.uses):
        return False
    is_own = defining_block(rival) is other
    return is_own and _follows(rival, value, other)


def origins(value: SSAValue) -> Iterator[SSAValue]:
    """Yield a tile, and the tiles from before branches that become it."""
    yield value
    if isinstance(op := value.owner, scf.IfOp):
        for region in op.regions:
            source = yielded(region.block)[op.results.index(value)]
            if defining_block(source) is not region.block:
                yield from origins(source)


def aliases(value: SSAValue) -> Iterator[SSAValue]:
    """Yield a tile, and the results of branches that it becomes."""
    yield value
    for use in value.uses:
        op = use.operation.parent_op()
        is_outer = defining_block(value) is not use.operation.parent
        if isinstance(op, scf.IfOp) and isinstance(use.operation, scf.YieldOp):
            yield from aliases(op.results[use.index]) if is_outer else ()


def _follows(value: SSAValue, arg: SSAValue, body: Block) -> bool:
    """Return True if a value is computed in a block after an argument's last use there.

    Both may share their buffers with other values.
    """
    users = [
        (user, alias)
        for alias in aliases(arg)
        for use in alias.uses
        if (user := body.find_ancestor_op_in_block(use.operation)) is not None
    ]
    return all(
        isinstance(op := source.owner, Operation)
        and op.parent is body
        and (user.is_before_in_block(op) or (user is op and overwrites(op, alias)))
        for source in origins(value)
        if source is not arg
        for user, alias in users
    )


@dataclass(frozen=True)
class TileInsertCopiesPass(ModulePass):
    """Copy tiles that cannot be updated in place."""

    name = "tile-insert-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            copy_overwritten(inner)
            if isinstance(inner, scf.ForOp):
                copy_yielded(inner.body.block, inner.body.block.args[1:])
            elif isinstance(inner, scf.IfOp) and inner.results:
                copy_branches(inner)


@dataclass(eq=False)
class BufferClass:
    """Values that share a buffer."""

    root: SSAValue
    """The value that names the buffer."""
    first: int = sys.maxsize
    last: int = 0
    buffer: int = -1

    @property
    def type(self) -> TileType:
        type_ = self.root.type
        assert isinstance(type_, TileType)
        return type_

    @property
    def label(self) -> str:
        return self.root.name_hint or "tile"


def shared_buffers(block: Block) -> DisjointSet[SSAValue]:
    """Return the tiles of a block as sets that must share a buffer."""
    sets = DisjointSet(list(tiles_of(block)))
    for op in block.walk(region_first=True):
        for first, *others in shared_by(op):
            for value in others if is_tile(first) else ():
                sets.union_left(first, value)
    return sets


def tiles_of(block: Block) -> Iterator[SSAValue]:
    """Yield the tiles that are defined within a block, outer ones first."""
    for op in block.walk():
        yield from (v for v in defined_values(op) if is_tile(v))


def shared_by(op: Operation) -> Iterator[Sequence[SSAValue]]:
    """Yield groups of values that must share a buffer because of an op."""
    if isinstance(op, scf.ForOp):
        body = op.body.block
        last = yielded(body)
        yield from zip(op.iter_args, body.args[1:], last, op.results, strict=True)
    elif isinstance(op, scf.IfOp):
        for block in (b for region in op.regions for b in region.blocks):
            yield from zip(op.results, yielded(block), strict=True)
    elif isinstance(op, ACCUMULATING) and op.acc is not None:
        yield op.acc, op.result
    elif op.regions and not isinstance(op, tile.MapOp | tile.PanelMapOp):
        refuse(op, "tile-assign-buffers expects loops, branches and maps only")


def classes_of(block: Block) -> dict[SSAValue, BufferClass]:
    """Return the class of each tile of a block, in order of definition."""
    sets, lifetimes = shared_buffers(block), Lifetimes.of(block)
    found: dict[SSAValue, BufferClass] = {}
    for value in tiles_of(block):
        root = sets.find(value)
        group = found.setdefault(root, BufferClass(root))
        group.first = min(group.first, lifetimes.definition(value))
        group.last = max(group.last, lifetimes.last_use(value))
        found[value] = group
    return found


@dataclass
class BufferScan:
    """A linear scan that assigns buffers to classes in order of definition."""

    classes: Mapping[SSAValue, BufferClass]
    buffers: list[BufferAttr] = field(default_factory=list[BufferAttr])
    holders: list[BufferClass] = field(default_factory=list[BufferClass])
    """The last class that held each buffer."""

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
        """Rank a buffer: in place, then of the same name, then most recently used."""
        last = self.holders[index].last
        is_namesake = self.buffers[index].label.data == new.label
        return last == new.first, is_namesake, last

    def is_free(self, old: BufferClass, new: BufferClass) -> bool:
        if old.last != new.first:
            return old.last < new.first
        op = definer(new)
        return op is not None and all(
            overwrites(op, v) for v in op.operands if self.classes.get(v) is old
        )


def definer(group: BufferClass) -> Operation | None:
    """Return the map that defines a class's root, or None if it is no map."""
    owner = group.root.owner
    is_plain = isinstance(owner, tile.MapOp | tile.PanelMapOp)
    return owner if isinstance(owner, Operation) and is_plain else None


def assign_buffers(kernel: tile.KernelOp) -> None:
    """Assign a buffer to every tile of a kernel."""
    block = kernel.body.block
    classes = classes_of(block)
    scan = BufferScan(classes)
    for group in sorted(dict.fromkeys(classes.values()), key=lambda c: c.first):
        scan.assign(group)
    kernel.attributes[BUFFERS] = ArrayAttr(scan.buffers)
    for op in kernel.walk():
        if isinstance(op, scf.ForOp | scf.IfOp):
            continue
        if tiles := [v for v in op.results if is_tile(v)]:
            indices = [classes[v].buffer for v in tiles]
            op.attributes[BUFFERS] = DenseArrayBase.from_list(i32, indices)


@dataclass(frozen=True)
class TileAssignBuffersPass(ModulePass):
    """Assign tiles to buffers."""

    name = "tile-assign-buffers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                assign_buffers(kernel)
