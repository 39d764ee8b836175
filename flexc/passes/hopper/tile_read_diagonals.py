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

from flexc.dialects import tile
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import element_of
from flexc.dialects.tile.memory import READABLE, read_as
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.gluon import PART_ROWS


@dataclass(frozen=True)
class Limit:
    """The clamp of an index to a limit beyond which elements are idle."""

    dim: int
    map: tile.MapOp
    op: arith.MinSIOp


@dataclass(frozen=True)
class Form:
    """A value that is `row * i + column * j` plus a uniform value at element [i, j]."""

    row: int = 0
    column: int = 0
    limits: tuple[Limit, ...] = ()
    """Limits beyond which the value may differ from the form."""
    is_index: bool = False
    """True for an index itself, which no addition has wrapped around."""

    @property
    def is_uniform(self) -> bool:
        return not self.row and not self.column and not self.limits

    @property
    def step(self) -> int | None:
        """The change per row, 1 or -1, or None if diagonals are not constant."""
        is_diagonal = self.row in (1, -1) and self.column == -self.row
        return self.row if is_diagonal else None


UNIFORM = Form()


def plus(a: Form, b: Form, sign: int = 1) -> Form:
    limits = tuple(dict.fromkeys((*a.limits, *b.limits)))
    return Form(a.row + sign * b.row, a.column + sign * b.column, limits)


Known = dict[tuple[SSAValue, tuple[int, ...]], Form | None]
"""The forms found so far, by value and by the dimensions that its map goes along."""


class Forms:
    """The forms of a map's integers modulo two to the power of a width.

    Arithmetic modulo that power needs no bounds on sizes: sums may wrap around.
    """

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
        """The dimensions of the tile that the map goes along."""
        self.known: Known = {} if known is None else known

    def of(self, value: SSAValue) -> Form | None:
        """Return the form of a value of the region, or None if no form is known."""
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
            return forms.of(yielded(source.owner.body.block)[source.index])
        return None

    def _extended(
        self, op: arith.ExtSIOp | arith.ExtUIOp, operand: Form
    ) -> Form | None:
        """Return the form of an extended integer: the operand's form, or None."""
        if width_of(op.input.type) >= self.width:
            return operand
        # Indices are not negative and do not wrap around.
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


def diagonal(op: tile.MapOp, value: SSAValue) -> Form | None:
    """Return the form of a value that is constant along diagonals and not uniform."""
    form = Forms(op, width_of(value.type)).of(value)
    return None if form is None or form.step is None else form


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
    """Append a map of one value, which can be hoisted out of loops by itself."""
    corner = Corner()
    op = corner.finish(write(corner))
    return code.insert(op, name)


def count_along(code: ScalarCode, form: Form, dim: int) -> SSAValue | None:
    """Return the number of live rows or columns of a tile, or None if all are live."""
    limits = [limit for limit in form.limits if limit.dim == dim]
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


def full_operand(op: tile.MapOp, value: SSAValue) -> SSAValue:
    """Add an operand of the map's own shape; return the region's argument for it."""
    op.operands = [*op.operands, value]
    spans = [*op.spans.data, DenseArrayBase.from_list(i32, [0, 1])]
    op.spans = ArrayAttr(spans)
    arg = op.body.block.insert_arg(element_of(value.type), len(op.body.block.args))
    arg.name_hint = value.name_hint
    return arg


@dataclass(frozen=True)
class TileReadDiagonalsPass(ModulePass):
    """Read values that are constant along diagonals once for each diagonal."""

    name = "tile-read-diagonals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            ReadAlongDiagonals(), apply_recursively=False
        ).rewrite_module(op)
