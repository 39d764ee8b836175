"""`tile-read-diagonals`: read values that are constant along diagonals once for each.

A bias by distance, `table[h, q_idx - kv_idx + n]`, reads rows + columns - 1 elements of
its table for a whole tile. The pass rewrites a `tile.read` at full rank whose offset is
a uniform number plus row - column, or column - row. The read becomes a
`tile.read_diagonals` before the map, at the offset of the tile's first element. A
thread then loads each of its elements once, from nearby addresses.

`idle_beyond` marks positions that are clamped to the last one only to keep a read in
range; elements beyond the limit do not count. Clamped positions are not constant along
diagonals. The pass drops such a clamp and passes the number of rows and columns that
count to the read. Reads with guards stay as they are: a guarded read gives 0 outside.

The pass runs after rows are split into parts, and before loops are peeled or rotated,
so that each read occurs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Operation,
    OpResult,
    Region,
    SSAValue,
)
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile.memory import READABLE, read_as
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.scalar.strides import LowBits, MapStrides
from flexc.passes.targets.gluon import PART_ROWS
from flexc.passes.tile.map_builder import FULL, operand_of


@dataclass(frozen=True)
class Limit:
    """The clamp of an index to a limit beyond which elements are idle."""

    dim: int
    map: tile.MapOp
    op: arith.MinSIOp


class Offset:
    """The offset of a read, as a sum of a row, a column and a uniform number.

    The sum is modulo two to the power of the offset's width.
    """

    def __init__(self, op: tile.MapOp, value: SSAValue):
        self.strides = MapStrides(LowBits(width_of(value.type)))
        self.limits: list[Limit] = []
        """Limits beyond which the offset may differ from the sum."""
        self._visited: set[tuple[SSAValue, tuple[int, ...]]] = set()
        self.step = self._step(op, value)
        if self.step is not None:
            self._find_limits(op, value, (0, 1))

    def _step(self, op: tile.MapOp, value: SSAValue) -> int | None:
        """Return the change per row, 1 or -1, or None if diagonals are not constant."""
        row, column = (self.strides.along(op, dim)[value] for dim in (0, 1))
        if row is None or column is None or row.step not in (1, -1):
            return None
        return row.step if column.step == -row.step else None

    def _find_limits(
        self, op: tile.MapOp, value: SSAValue, dims: tuple[int, ...]
    ) -> None:
        """Find the limits of a map's value; `dims` are the dimensions of the map."""
        if not dims or (value, dims) in self._visited:
            return
        self._visited.add((value, dims))
        if isinstance(value, BlockArgument):
            source = op.inputs[value.index]
            if isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult):
                span = tuple(dims[d] for d in op.span(value.index))
                inner = yielded(source.owner.body.block)[source.index]
                self._find_limits(source.owner, inner, span)
            return
        least = value.owner
        assert isinstance(least, Operation)
        for operand in least.operands:
            self._find_limits(op, operand, dims)
        if isinstance(least, arith.MinSIOp) and tile.IDLE_BEYOND in least.attributes:
            for i, dim in enumerate(dims):
                if not self.strides.along(op, i).is_invariant(least.lhs):
                    self.limits.append(Limit(dim, op, least))


class Corner:
    """The code of values that a map's region has at its tile's first element.

    The code becomes the region of a map that goes along no dimension.
    """

    def __init__(self) -> None:
        self.block = Block()
        self.code = ScalarCode(self.block)
        self.inputs: list[SSAValue] = []
        self.known: dict[SSAValue, SSAValue] = {}

    def outer(self, value: SSAValue) -> SSAValue:
        """Return the region's argument for a value from outside."""
        if value not in self.known:
            arg = self.block.insert_arg(value.type, len(self.inputs))
            arg.name_hint = value.name_hint
            self.inputs.append(value)
            self.known[value] = arg
        return self.known[value]

    def of(self, op: tile.MapOp, value: SSAValue) -> SSAValue:
        """Return a value of a map's region at row 0 and column 0."""
        if value not in self.known:
            self.known[value] = self.written(op, value)
        return self.known[value]

    def written(self, op: tile.MapOp, value: SSAValue) -> SSAValue:
        if isinstance(value, BlockArgument):
            return self.operand(op, value.index)
        assert isinstance(value, OpResult)
        owner = value.owner
        if tile.IDLE_BEYOND in owner.attributes:
            return self.of(op, owner.operands[0])
        return self.code.insert(
            owner.clone({v: self.of(op, v) for v in owner.operands})
        )

    def operand(self, op: tile.MapOp, number: int) -> SSAValue:
        source = op.inputs[number]
        if isinstance(source.owner, tile.IotaOp):
            return self.outer(source.owner.start)
        if not op.span(number):
            return self.outer(source)
        assert isinstance(source, OpResult)
        assert isinstance(source.owner, tile.MapOp)
        return self.of(source.owner, yielded(source.owner.body.block)[source.index])

    def finish(self, value: SSAValue) -> tile.MapOp:
        """Return the map that yields a value."""
        self.code.yield_(value)
        spans = [()] * len(self.inputs)
        return tile.MapOp(self.inputs, spans, [value.type], Region(self.block))


class ReadAlongDiagonals(RewritePattern):
    """A pattern that replaces a read by an operand that was read along diagonals."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReadOp, rewriter: PatternRewriter) -> None:
        parent = op.parent_op()
        if not isinstance(parent, tile.MapOp) or len(parent.shape) != 2:
            return
        offset = Offset(parent, op.offset)
        if offset.step is None or not is_readable(op, parent):
            return
        code = ScalarCode(InsertPoint.before(parent))
        first = at_corner(code, "first", lambda c: c.of(parent, op.offset))
        rows, columns = (count_along(code, offset.limits, dim) for dim in (0, 1))
        assert isinstance(op.tensor, BlockArgument)
        tensor = parent.inputs[op.tensor.index]
        shape = parent.shape
        read = tile.ReadDiagonalsOp(tensor, first, offset.step, shape, rows, columns)
        read.location = op.location
        value = code.insert(read, op.result.name_hint)
        rewriter.replace(op, [], [operand_of(parent, value, FULL)])


def at_corner(
    code: ScalarCode, name: str, write: Callable[[Corner], SSAValue]
) -> SSAValue:
    """Append a map of one value, which can be hoisted out of loops by itself."""
    corner = Corner()
    op = corner.finish(write(corner))
    return code.insert(op, name)


def count_along(code: ScalarCode, limits: Iterable[Limit], dim: int) -> SSAValue | None:
    """Return the number of live rows or columns of a tile, or None if all are live."""
    limits = [limit for limit in limits if limit.dim == dim]
    if not limits:
        return None
    return at_corner(code, ("rows", "columns")[dim], lambda c: count_up_to(c, limits))


def count_up_to(corner: Corner, limits: Sequence[Limit]) -> SSAValue:
    """Return the number of indices within all limits, at most 0 if none are."""
    code, count = corner.code, None
    for limit in limits:
        start, last = (corner.of(limit.map, v) for v in limit.op.operands)
        within = code.add(code.sub(last, start), code.const(1))
        if count is not None:
            within = code.insert(arith.MinSIOp(count, within))
        count = within
    assert count is not None
    return count


def is_readable(op: tile.ReadOp, parent: tile.MapOp) -> bool:
    """Return True if a warp group's threads can read the elements along diagonals."""
    rows, columns = parent.shape
    if op.valid is not None or rows != PART_ROWS or columns % 16:
        return False
    assert isa(op.tensor.type, TensorType[Attribute])
    element = op.tensor.type.element_type
    return element in READABLE and op.result.type == read_as(element)


@dataclass(frozen=True)
class TileReadDiagonalsPass(ModulePass):
    """Read values that are constant along diagonals once for each diagonal."""

    name = "tile-read-diagonals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            ReadAlongDiagonals(), apply_recursively=False
        ).rewrite_module(op)
