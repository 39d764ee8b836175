"""Which dimensions of a program's tiles are the same: rows, columns, head dims.

Two dimensions are one where an op goes along both in step: element i of one meets
element i of the other. What stands in a class of dimensions can be cut along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.errors import ScheduleError

Dim = tuple[SSAValue, int]
"""A dimension of a value that is a tile."""


class TileDims:
    """Classes of the dimensions of all tiles in a block and what it has inside."""

    def __init__(self, block: Block):
        self.parents: dict[Dim, Dim] = {}
        for op in block.walk():
            for pair in equal_dims(op):
                self.join(*pair)

    def find(self, dim: Dim) -> Dim:
        """What stands for the class of a dimension."""
        path: list[Dim] = []
        while (parent := self.parents.get(dim, dim)) != dim:
            path.append(dim)
            dim = parent
        self.parents.update(dict.fromkeys(path, dim))
        return dim

    def join(self, a: Dim, b: Dim) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parents[a] = b

    def along(self, value: SSAValue, cls: Dim) -> list[int]:
        """The dimensions of a value that belong to a class."""
        return [d for d in range(rank(value)) if self.find((value, d)) == cls]


def rank(value: SSAValue) -> int:
    """How many dimensions a value has, 0 if it is no tile."""
    return value.type.get_num_dims() if isinstance(value.type, TileType) else 0


def equal_dims(op: Operation) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that an op goes along in step."""
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
        case tile.GatherOp() | tile.ScatterOp() | tile.ScatterAddOp():
            tiles = [v for v in (*op.operands, *op.results) if rank(v)]
            yield from _alike(tiles)
        case scf.ForOp():
            inner, yielded = op.body.block.args[1:], _yielded(op.body.block)
            rows = zip(op.iter_args, inner, yielded, op.results, strict=True)
            for row in rows:
                yield from _alike(row)
        case scf.IfOp():
            branches = [_yielded(r.block) for r in op.regions if r.blocks]
            for row in zip(op.results, *branches, strict=False):
                yield from _alike(row)
        case _:
            pass


def summed_dims(op: Operation) -> list[Dim]:
    """The dimensions that an op does not go along element by element."""
    match op:
        case tile.ReduceOp():
            return [(op.input, op.dim.value.data)]
        case tile.DotOp():
            return [(op.lhs, 1)]
        case tile.DiagonalsOp():
            return [(op.input, 0), (op.input, 1), (op.result, 0)]
        case _:
            return []


KNOWN = (
    *(tile.MapOp, tile.ReduceOp, tile.DotOp, tile.TransposeOp, tile.DiagonalsOp),
    *(tile.GatherOp, tile.ScatterOp, tile.ScatterAddOp),
    *(tile.IotaOp, tile.FullOp, tile.LoadOp, tile.StoreOp, tile.AddToOp),
    *(scf.ForOp, scf.IfOp, scf.YieldOp),
)
"""Ops on tiles of which this file knows what they do with dimensions."""


def check_known(ops: Iterable[Operation]) -> None:
    """Raise if an op uses tiles in a way that is not known here."""
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


def _yielded(block: Block) -> Sequence[SSAValue]:
    last = block.last_op
    assert last is not None
    return last.operands
