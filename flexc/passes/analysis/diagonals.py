"""Integers of a map that are the same along the diagonals of its tile.

Such a value is `first + step * (row - column)` for a step of 1 or -1, as a sum of its
own type: modulo two to the power of its width, so that nothing need be known of sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, BlockArgument, OpResult, SSAValue

from flexc.dialects import flex, tile
from flexc.passes.analysis.ranges.linear_forms import int_constant
from flexc.passes.analysis.ranges.value_ranges import width_of


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
