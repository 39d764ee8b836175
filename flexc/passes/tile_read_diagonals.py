"""`tile-read-diagonals`: reads that are the same along diagonals, as reads of these.

A bias by distance, `table[h, q_idx - kv_idx + n]`, reads rows + columns - 1 elements of
its table for a whole tile. Where the offset of a `tile.read` at full rank is a uniform
number plus row - column, or column - row, it becomes a `tile.read_diagonals` before the
map, at the offset of the tile's first element: a thread then loads each of its elements
once, all of them near one address.

Elements that were not read are not read here either. A guard which says that an index
is in range bounds the diagonals. So do positions that were lowered to the last one only
so that something is read (`idle_beyond`): a tile whose last row that counts is i and
whose last column is j reads the diagonals from -j to i, all of which it has.

Rows are those of a part by now, and iterations are not yet peeled or rotated: there is
one read of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    ModuleOp,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, OpResult, Region, SSAValue
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
from flexc.dialects.tile import element_of
from flexc.dialects.tile.diagonal_reads import READABLE, read_as
from flexc.passes.analysis.diagonals import (
    NO_GUARD,
    Form,
    Guard,
    InRange,
    Limit,
    diagonal,
    guard_of,
    yielded,
)
from flexc.passes.analysis.ranges.value_ranges import width_of
from flexc.passes.scalar_code import ScalarCode

LARGE = 1 << 48
"""More than a tensor has elements, and far from the ends of 64 bits."""


class Corner:
    """Code of the values that a map's region has at its tile's first element.

    It is the region of a map that goes along nothing.
    """

    def __init__(self) -> None:
        self.block = Block()
        self.code = ScalarCode(self.block)
        self.inputs: list[SSAValue] = []
        self.known: dict[SSAValue, SSAValue] = {}

    def outer(self, value: SSAValue) -> SSAValue:
        """A value from before, as the region sees it."""
        if value not in self.known:
            arg = self.block.insert_arg(value.type, len(self.inputs))
            arg.name_hint = value.name_hint
            self.inputs.append(value)
            self.known[value] = arg
        return self.known[value]

    def of(self, op: tile.MapOp, value: SSAValue) -> SSAValue:
        """A value of some map's region at row 0 and column 0."""
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
        clone = owner.clone({v: self.of(op, v) for v in owner.operands})
        clone.location = owner.location
        return self.code.insert(clone, value.name_hint)

    def operand(self, op: tile.MapOp, number: int) -> SSAValue:
        source = op.inputs[number]
        if isinstance(source.owner, tile.IotaOp):
            return self.outer(source.owner.start)
        if not op.span(number):
            return self.outer(source)
        assert isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult)
        return self.of(source.owner, yielded(source.owner, source.index))

    def finish(self, *values: SSAValue) -> tile.MapOp:
        """The map that yields these."""
        self.code.yield_(*values)
        spans = [()] * len(self.inputs)
        types = [v.type for v in values]
        return tile.MapOp(self.inputs, spans, types, Region(self.block))


class Bounds:
    """Writes which diagonals of a tile are read: of row - column, from low to high."""

    def __init__(self, corner: Corner, op: tile.MapOp):
        self.corner = corner
        self.code = corner.code
        self.op = op
        self.rows, self.columns = op.shape
        self.low = self.code.const(1 - self.columns)
        self.high = self.code.const(self.rows - 1)

    @property
    def margin(self) -> int:
        """More than any element is away from the first one."""
        return self.rows + self.columns

    def raise_low(self, value: SSAValue) -> None:
        self.low = self.code.insert(arith.MaxSIOp(self.low, value), "low")

    def lower_high(self, value: SSAValue) -> None:
        self.high = self.code.insert(arith.MinSIOp(self.high, value), "high")

    def nothing_unless(self, condition: SSAValue) -> None:
        none = self.code.const(-self.columns)
        self.high = self.code.select(condition, self.high, none)

    def add_limit(self, limit: Limit) -> None:
        """Read what counts: rows up to the limit, or columns."""
        code = self.code
        index = self.corner.of(limit.map, limit.op.lhs)
        last = code.sub(self.corner.of(limit.map, limit.op.rhs), index)
        if limit.dim == 0:
            self.lower_high(last)
        else:
            self.raise_low(code.sub(code.const(0), last))
        self.nothing_unless(code.cmp("sge", last, code.const(0)))

    def add_range(self, test: InRange) -> None:
        """Read where an index is in range."""
        code = self.code
        index = self.wide_index(self.corner.of(self.op, test.index))
        size = self.corner.of(self.op, test.size)
        if size.type == i32:
            size = code.insert(arith.ExtUIOp(size, i64))
        before = code.sub(code.const(0, i64), index)
        after = code.add(before, code.sub(size, code.const(1, i64)))
        if test.step < 0:
            zero = code.const(0, i64)
            before, after = code.sub(zero, after), code.sub(zero, before)
        self.raise_low(self.narrow(before))
        self.lower_high(self.narrow(after))

    def wide_index(self, index: SSAValue) -> SSAValue:
        """The first element's index such that sums with it do not wrap around."""
        code = self.code
        if width_of(index.type) < width_of(i64):
            # Close below 0 it is negative; farther below it is large, and so outside.
            margin = self.margin
            shifted = code.add(index, code.const(margin, index.type))
            wide = code.insert(arith.ExtUIOp(shifted, i64))
            return code.sub(wide, code.const(margin, i64))
        return self.clamped(index, LARGE)

    def narrow(self, value: SSAValue) -> SSAValue:
        return self.code.int_cast(self.clamped(value, self.margin), i32)

    def clamped(self, value: SSAValue, size: int) -> SSAValue:
        code = self.code
        least = code.insert(arith.MinSIOp(value, code.const(size, i64)))
        return code.insert(arith.MaxSIOp(least, code.const(-size, i64)))


class ReadAlongDiagonals(RewritePattern):
    """Replace a read by an operand that was read along diagonals."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReadOp, rewriter: PatternRewriter) -> None:
        parent = op.parent_op()
        if not isinstance(parent, tile.MapOp) or len(parent.shape) != 2:
            return
        form = diagonal(parent, op.offset)
        guard = NO_GUARD if op.valid is None else guard_of(parent, op.valid)
        if form is None or guard is None or not is_readable(op):
            return
        code = ScalarCode(InsertPoint.before(parent))
        first, *bounds = place_of(code, parent, op.offset, form, guard)
        assert form.step is not None
        assert isinstance(op.tensor, BlockArgument)
        tensor = parent.inputs[op.tensor.index]
        read = tile.ReadDiagonalsOp(tensor, first, form.step, bounds, parent.shape)
        read.location = op.location
        value = code.insert(read, op.result.name_hint)
        rewriter.replace(op, [], [full_operand(parent, value)])


def place_of(
    code: ScalarCode, op: tile.MapOp, offset: SSAValue, form: Form, guard: Guard
) -> list[SSAValue]:
    """The offset of a tile's first element, and the bounds of the diagonals if any."""
    corner = Corner()
    values = [corner.of(op, offset)]
    limits = [*form.limits, *(x for r in guard.ranges for x in r.limits)]
    if limits or guard != NO_GUARD:
        bounds = Bounds(corner, op)
        for test in guard.ranges:
            bounds.add_range(test)
        for limit in dict.fromkeys(limits):
            bounds.add_limit(limit)
        for condition in guard.uniform:
            bounds.nothing_unless(corner.of(op, condition))
        values += [bounds.low, bounds.high]
    place = corner.finish(*values)
    code.builder.insert(place)
    for result, name in zip(place.results, ("first", "low", "high"), strict=False):
        result.name_hint = name
    return list(place.results)


def is_readable(op: tile.ReadOp) -> bool:
    """Whether elements have a type that is read along diagonals as it is here."""
    assert isa(op.tensor.type, TensorType[Attribute])
    element = op.tensor.type.element_type
    return element in READABLE and op.result.type == read_as(element)


def full_operand(op: tile.MapOp, value: SSAValue) -> SSAValue:
    """The region's argument for one more operand, of the map's own shape."""
    op.operands = [*op.operands, value]
    spans = [*op.spans.data, DenseArrayBase.from_list(i32, [0, 1])]
    op.spans = ArrayAttr(spans)
    arg = op.body.block.insert_arg(element_of(value.type), len(op.body.block.args))
    arg.name_hint = value.name_hint
    return arg


@dataclass(frozen=True)
class TileReadDiagonalsPass(ModulePass):
    """Read what is the same along diagonals once for each."""

    name = "tile-read-diagonals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            ReadAlongDiagonals(), apply_recursively=False
        ).rewrite_module(op)
