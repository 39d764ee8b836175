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
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, TensorType, i32
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

from flexc.dialects import flex, tile
from flexc.dialects.tile import element_of
from flexc.dialects.tile.diagonal_reads import READABLE, read_as
from flexc.passes.scalar.ranges.linear_forms import int_constant
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.hopper_sizes import PART_ROWS

# Integers of a map that are the same along the diagonals of its tile.
#
# Such a value is `first + step * (row - column)` for a step of 1 or -1, as a sum of its
# own type: modulo two to the power of its width, so that nothing need be known of
# sizes.


@dataclass(frozen=True)
class Limit:
    """What an index of a tile's dimension is lowered to, which is idle beyond."""

    dim: int
    map: tile.MapOp
    op: arith.MinSIOp


@dataclass(frozen=True)
class Form:
    """`row * i + column * j` plus what is uniform, for element [i, j] of a tile."""

    row: int = 0
    column: int = 0
    limits: tuple[Limit, ...] = ()
    """Beyond these the value may be another one."""
    is_index: bool = False
    """Whether it is an index itself, which no sum has wrapped around."""

    @property
    def is_uniform(self) -> bool:
        return not self.row and not self.column and not self.limits

    @property
    def step(self) -> int | None:
        """What a step off the diagonal adds, where that is 1 or -1."""
        is_diagonal = self.row in (1, -1) and self.column == -self.row
        return self.row if is_diagonal else None


UNIFORM = Form()


def plus(a: Form, b: Form, sign: int = 1) -> Form:
    limits = tuple(dict.fromkeys((*a.limits, *b.limits)))
    return Form(a.row + sign * b.row, a.column + sign * b.column, limits)


Known = dict[tuple[SSAValue, tuple[int, ...]], Form | None]
"""Forms that were found, of values of maps along these dimensions of the tile."""


class Forms:
    """The forms of a map's integers modulo two to the power of some width."""

    def __init__(
        self,
        op: tile.MapOp,
        width: int,
        dims: tuple[int, ...] = (0, 1),
        known: Known | None = None,
    ):
        self.op = op
        self.width = width
        self.dims = dims
        """Which dimensions of the tile the map goes along."""
        self.known: Known = {} if known is None else known

    def of(self, value: SSAValue) -> Form | None:
        """The form of a value of the region; None if it is not known to have one."""
        key = value, self.dims
        if key not in self.known:
            self.known[key] = self._found(value)
        return self.known[key]

    def _found(self, value: SSAValue) -> Form | None:
        if isinstance(value.owner, Block):
            assert isinstance(value, BlockArgument)
            return self._of_operand(value.index)
        forms: list[Form] = []
        for operand in value.owner.operands:
            if (form := self.of(operand)) is None:
                return None
            forms.append(form)
        if all(form.is_uniform for form in forms):
            return UNIFORM
        match value.owner, forms:
            case arith.AddiOp(), [a, b]:
                return plus(a, b)
            case arith.SubiOp(), [a, b]:
                return plus(a, b, -1)
            case arith.MuliOp(), [a, b]:
                return _product(value.owner, a, b)
            case arith.TruncIOp(), [a]:
                return a if width_of(value.type) >= self.width else None
            case ((arith.ExtSIOp() | arith.ExtUIOp() as extend), [a]):
                return self._extended(extend, a)
            case arith.MinSIOp() as least, [a, b]:
                return self._lowered(least, a, b)
            case _:
                return None

    def _of_operand(self, number: int) -> Form | None:
        source = self.op.inputs[number]
        span = tuple(self.dims[d] for d in self.op.span(number))
        if not span:
            return UNIFORM
        if isinstance(source.owner, tile.IotaOp):
            return Form(int(span == (0,)), int(span == (1,)), is_index=True)
        if isinstance(source.owner, tile.MapOp) and isinstance(source, OpResult):
            forms = Forms(source.owner, self.width, span, self.known)
            return forms.of(yielded(source.owner, source.index))
        return None

    def _extended(
        self, op: arith.ExtSIOp | arith.ExtUIOp, operand: Form
    ) -> Form | None:
        """A wider integer: the same modulo what the operand is known modulo."""
        if width_of(op.input.type) >= self.width:
            return operand
        # Positions are not negative and do not wrap around.
        return operand if operand.is_index else None

    def _lowered(self, op: arith.MinSIOp, a: Form, b: Form) -> Form | None:
        is_limited = tile.IDLE_BEYOND in op.attributes and op.result.type == i32
        if not is_limited or not a.is_index or not b.is_uniform:
            return None
        limit = Limit(0 if a.row else 1, self.op, op)
        return Form(a.row, a.column, (*a.limits, limit), is_index=True)


def _product(op: arith.MuliOp, a: Form, b: Form) -> Form | None:
    if a.is_uniform:
        return _product_with(op.lhs, b)
    return _product_with(op.rhs, a) if b.is_uniform else None


def _product_with(value: SSAValue, form: Form) -> Form | None:
    factor = int_constant(value)
    if factor is None:
        return None
    return Form(form.row * factor, form.column * factor, form.limits)


def yielded(op: tile.MapOp, number: int) -> SSAValue:
    """What a map's region yields as one of its results."""
    last = op.body.block.last_op
    assert isinstance(last, flex.YieldOp)
    return last.values[number]


def diagonal(op: tile.MapOp, value: SSAValue) -> Form | None:
    """The form of a value that is the same along diagonals, and not uniform."""
    form = Forms(op, width_of(value.type)).of(value)
    return None if form is None or form.step is None else form


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
