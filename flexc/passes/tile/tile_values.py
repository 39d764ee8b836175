"""Find definitions, lifetimes and equal dimensions of a program's tiles.

Two dimensions are equal if an op iterates over both in step, so that element i of one
is combined with element i of the other. All tiles of a class of equal dimensions (rows,
columns, head dims) can be split along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.disjoint_set import DisjointSet

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import TileType, shape_of
from flexc.errors import ScheduleError

ACCUMULATING = (tile.RegisterProductOp, tile.StreamProductOp)
"""Products whose result shares the buffer of the accumulator."""


def is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def defined_values(op: Operation) -> list[SSAValue]:
    """Return the results of an op and the arguments of its blocks."""
    args = (a for region in op.regions for b in region.blocks for a in b.args)
    return [*op.results, *args]


def defining_block(value: SSAValue) -> Block:
    """Return the block in which a value is defined."""
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent_block()
    assert block is not None
    return block


def user_in(block: Block, use: Use) -> Operation:
    """Return the op of a block that is a use's op or contains that op."""
    op = block.find_ancestor_op_in_block(use.operation)
    assert op is not None
    return op


def overwrites(op: Operation, value: SSAValue) -> bool:
    """Return True if an op may write its result over an operand that it reads.

    A map may if it reads each element before it writes the same element. A product may
    overwrite its accumulator. A loop overwrites its initial values.
    """
    if isinstance(op, tile.MapOp | tile.PanelMapOp):
        whole = tuple(range(len(op.shape)))
        spans = {op.span(i) for i, v in enumerate(op.inputs) if v is value}
        return spans == {whole}
    if isinstance(op, ACCUMULATING):
        return value is op.acc and value not in (op.lhs, op.rhs)
    return isinstance(op, scf.ForOp) and list(op.operands).count(value) == 1


def dies_at(value: SSAValue, op: Operation) -> bool:
    """Return True if an op in a value's own block is the last to use the value.

    A loop whose body uses the value is not: the body uses the value repeatedly.
    """
    block = defining_block(value)
    if op.parent_block() is not block:
        return False
    users = [(u.operation, user_in(block, u)) for u in value.uses]
    return all(
        not op.is_before_in_block(outer) and (outer is not op or inner is op)
        for inner, outer in users
    )


@dataclass
class Lifetimes:
    """Positions in program order of ops, definitions and last uses.

    A value that a loop uses but does not define lives until the loop ends. The
    arguments of a loop are defined where the loop starts, its results where the loop
    ends.
    """

    start: dict[Operation, int] = field(default_factory=dict[Operation, int])
    end: dict[Operation, int] = field(default_factory=dict[Operation, int])
    count: int = 0

    @classmethod
    def of(cls, block: Block) -> Lifetimes:
        lifetimes = cls()
        lifetimes.visit(block)
        return lifetimes

    def visit(self, block: Block) -> None:
        for op in block.ops:
            self.start[op] = self.count
            self.count += 1
            if isinstance(op, scf.ForOp | scf.IfOp):
                for region in op.regions:
                    for inner in region.blocks:
                        self.visit(inner)
            self.end[op] = self.count
            self.count += 1

    def definition(self, value: SSAValue) -> int:
        owner = value.owner
        if isinstance(owner, Block):
            parent = owner.parent_op()
            assert parent is not None
            return self.start[parent]
        is_loop = isinstance(owner, scf.ForOp | scf.IfOp)
        return self.end[owner] if is_loop else self.start[owner]

    def last_use(self, value: SSAValue) -> int:
        block = defining_block(value)
        return max(
            (self._use(block, use) for use in value.uses),
            default=self.definition(value),
        )

    def _use(self, block: Block, use: Use) -> int:
        user = user_in(block, use)
        return self.start[user] if user is use.operation else self.end[user]


Dim = tuple[SSAValue, int]
"""A tile and the number of one of its dimensions."""


class TileDims:
    """Classes of the dimensions of all tiles in a block and in its nested blocks."""

    def __init__(self, block: Block):
        dims = ((v, d) for v in values_of(block) for d in range(rank(v)))
        self.classes: DisjointSet[Dim] = DisjointSet(list(dict.fromkeys(dims)))
        for op in block.walk():
            for pair in equal_dims(op):
                self.join(*pair)

    def find(self, dim: Dim) -> Dim:
        """Return the representative of a dimension's class."""
        return self.classes.find(dim)

    def join(self, a: Dim, b: Dim) -> None:
        """Merge the classes of two dimensions."""
        self.classes.union_left(b, a)

    def along(self, value: SSAValue, cls: Dim) -> list[int]:
        """Return the dimensions of a value that belong to a class."""
        return [d for d in range(rank(value)) if self.find((value, d)) == cls]


def values_of(block: Block) -> Iterator[SSAValue]:
    """Yield the values used or defined in a block and in its nested blocks."""
    for op in block.walk():
        yield from (*op.operands, *defined_values(op))


def separate_constants(block: Block) -> None:
    """Give each use of a constant tile an op of its own.

    Uses of one constant may be rows in one place and columns in another.
    """
    for op in list(block.walk()):
        if isinstance(op, tile.FullOp):
            for use in list(op.result.uses)[1:]:
                clone = op.clone()
                Rewriter.insert_op(clone, InsertPoint.after(op))
                use.operation.operands[use.index] = clone.result


def after(value: SSAValue) -> InsertPoint:
    """Return the place right after the definition of a value."""
    owner = value.owner
    if isinstance(owner, Block):
        return InsertPoint.at_start(owner)
    return InsertPoint.after(owner)


def rank(value: SSAValue) -> int:
    """Return the number of dimensions of a tile, or 0 for another value."""
    return value.type.get_num_dims() if isinstance(value.type, TileType) else 0


def equal_dims(op: Operation) -> Iterator[tuple[Dim, Dim]]:
    """Yield pairs of dimensions that an op iterates over in step."""
    match op:
        case tile.MapOp():
            yield from _of_map(op)
        case tile.ReduceOp():
            kept = [d for d in range(rank(op.input)) if d != op.dim.value.data]
            yield from (((op.result, i), (op.input, d)) for i, d in enumerate(kept))
        case tile.DotOp():
            yield (op.lhs, 0), (op.result, 0)
            yield (op.rhs, 1), (op.result, 1)
            yield (op.lhs, 1), (op.rhs, 0)
            yield from _alike([op.acc, op.result])
        case tile.TransposeOp():
            last = rank(op.input) - 1
            yield from (((op.input, d), (op.result, last - d)) for d in range(last + 1))
        case tile.ScanOp():
            yield from _alike([op.input, op.result])
        case tile.GatherOp() | tile.ScatterOp() | tile.ScatterAddOp():
            tiles = [v for v in (*op.operands, *op.results) if rank(v)]
            yield from _alike(tiles)
        case scf.ForOp():
            inner, last = op.body.block.args[1:], yielded(op.body.block)
            rows = zip(op.iter_args, inner, last, op.results, strict=True)
            for row in rows:
                yield from _alike(row)
        case scf.IfOp():
            branches = [yielded(r.block) for r in op.regions if r.blocks]
            for row in zip(op.results, *branches, strict=False):
                yield from _alike(row)
        case _:
            pass


def summed_dims(op: Operation) -> list[Dim]:
    """Return the dimensions that an op does not treat element by element."""
    match op:
        case tile.ReduceOp():
            return [(op.input, op.dim.value.data)]
        case tile.ScanOp():
            return [(op.input, 1)]
        case tile.DotOp():
            return [(op.lhs, 1)]
        case tile.DiagonalsOp():
            return [(op.input, 0), (op.input, 1), (op.result, 0)]
        case _:
            return []


KNOWN = (
    *(tile.MapOp, tile.ReduceOp, tile.ScanOp, tile.DotOp),
    *(tile.TransposeOp, tile.DiagonalsOp),
    *(tile.GatherOp, tile.ScatterOp, tile.ScatterAddOp),
    *(tile.IotaOp, tile.FullOp, tile.LoadOp, tile.StoreOp, tile.AddToOp),
    *(scf.ForOp, scf.IfOp, scf.YieldOp),
)
"""Ops on tiles whose use of dimensions this module knows."""


def check_known(ops: Iterable[Operation]) -> None:
    """Raise `ScheduleError` if an op that is not in `KNOWN` uses tiles."""
    for op in ops:
        uses_tiles = any(rank(v) for v in (*op.operands, *op.results))
        if uses_tiles and not isinstance(op, KNOWN):
            raise ScheduleError(f"it is not known what {op.name} does with rows")


def _of_map(op: tile.MapOp) -> Iterator[tuple[Dim, Dim]]:
    first, *others = op.results
    for i, value in enumerate(op.inputs):
        yield from (((value, k), (first, d)) for k, d in enumerate(op.span(i)))
    for other in others:
        yield from _alike([first, other])


def _alike(values: Sequence[SSAValue]) -> Iterator[tuple[Dim, Dim]]:
    first, *others = values
    for other in others:
        yield from (((first, d), (other, d)) for d in range(len(shape_of(first.type))))
