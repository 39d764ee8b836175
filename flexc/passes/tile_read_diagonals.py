"""`tile-read-diagonals`: reads that are the same along diagonals, as reads of these.

A bias by distance, `table[h, q_idx - kv_idx + n]`, reads rows + columns - 1 elements of
its table for a whole tile. Where the offset of a `tile.read` at full rank is a uniform
number plus row - column, or column - row, it becomes a `tile.read_diagonals` before the
map, at the offset of the tile's first element: a thread then loads each of its elements
once, all of them near one address.

Positions that were lowered to the last one only so that something is read, as what is
beyond does not count (`idle_beyond`), would not be the same along diagonals. They are
not lowered here, and the read is told how many rows and columns count. Reads with
guards stay as they are: what they read outside is 0.

Rows are those of a part by now, and iterations are not yet peeled or rotated: there is
one read of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    ModuleOp,
    TensorType,
    i32,
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
    Form,
    Limit,
    diagonal,
    yielded,
)
from flexc.passes.hopper_sizes import PART_ROWS
from flexc.passes.scalar_code import ScalarCode


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
        assert isinstance(source, OpResult)
        assert isinstance(source.owner, tile.MapOp)
        return self.of(source.owner, yielded(source.owner, source.index))

    def finish(self, value: SSAValue) -> tile.MapOp:
        """The map that yields a value."""
        self.code.yield_(value)
        spans = [()] * len(self.inputs)
        return tile.MapOp(self.inputs, spans, [value.type], Region(self.block))


class ReadAlongDiagonals(RewritePattern):
    """Replace a read by an operand that was read along diagonals."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReadOp, rewriter: PatternRewriter) -> None:
        parent = op.parent_op()
        if not isinstance(parent, tile.MapOp) or len(parent.shape) != 2:
            return
        form = diagonal(parent, op.offset)
        if form is None or not is_readable(op, parent):
            return
        code = ScalarCode(InsertPoint.before(parent))
        first = at_corner(code, "first", lambda c: c.of(parent, op.offset))
        rows, columns = (count_along(code, form, dim) for dim in (0, 1))
        assert form.step is not None
        assert isinstance(op.tensor, BlockArgument)
        tensor = parent.inputs[op.tensor.index]
        shape = parent.shape
        read = tile.ReadDiagonalsOp(tensor, first, form.step, shape, rows, columns)
        read.location = op.location
        value = code.insert(read, op.result.name_hint)
        rewriter.replace(op, [], [full_operand(parent, value)])


def at_corner(
    code: ScalarCode, name: str, write: Callable[[Corner], SSAValue]
) -> SSAValue:
    """Append a map of one value, which may leave a loop alone."""
    corner = Corner()
    op = corner.finish(write(corner))
    return code.insert(op, name)


def count_along(code: ScalarCode, form: Form, dim: int) -> SSAValue | None:
    """How many of a tile's rows or columns count, if not all do."""
    limits = [limit for limit in form.limits if limit.dim == dim]
    if not limits:
        return None
    return at_corner(code, ("rows", "columns")[dim], lambda c: count_up_to(c, limits))


def count_up_to(corner: Corner, limits: Sequence[Limit]) -> SSAValue:
    """How many of a tile's indices are within all limits; none or less if none are."""
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
    """Whether a thread of a warp group can read its elements along diagonals."""
    rows, columns = parent.shape
    if op.valid is not None or rows != PART_ROWS or columns % 16:
        return False
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
