"""`tile-keep-columns`: mask columns by their first and last number in each row.

A mask such as `q_idx >= kv_idx` compares every element. If a comparison is linear in
the column, it holds from some column of the row on, or up to one. This pass computes
that column once for each row, and `tile.keep_columns` replaces other elements:

    s = where(q_start + i >= kv_start + j, s, -inf)

    end = clamp(q_start + i - kv_start + 1, 0, columns)
    s = keep_columns(s, 0, end, -inf)

Comparisons that are not linear stay in the map. Columns are computed in 64 bits, which
hold all sums of 32-bit numbers of a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, f32, i32, i64
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import flex, tile
from flexc.dialects.constants import float_constant, int_constant
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import element_of
from flexc.dialects.tile.schedule import RoleOp
from flexc.passes.scalar.predicates import exchanged, predicate_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import FULL, UNIFORM, Input, build_map

MOST_COLUMNS = 128
"""The most columns of a tile: a thread has a bit for each of its elements of a row."""

ROOM = 1 << 62
"""A limit for 64-bit numbers that a mask compares with a column, but does not add."""

BOUNDING = ("sge", "sle", "sgt", "slt", "eq")
"""The predicates that bound a column."""


@dataclass(frozen=True)
class LinearInColumn:
    """A number that is `column` times the column, plus signed terms and a constant."""

    column: int = 0
    terms: tuple[tuple[int, Input], ...] = ()
    """Values outside of the map that do not vary along columns, each with its sign."""
    constant: int = 0

    def plus(self, other: LinearInColumn, sign: int) -> LinearInColumn:
        others = tuple((sign * s, v) for s, v in other.terms)
        return LinearInColumn(
            self.column + sign * other.column,
            self.terms + others,
            self.constant + sign * other.constant,
        )

    @property
    def is_exact(self) -> bool:
        """Return True if sums with this number fit 64 bits."""
        return all(element_of(value.type) == i32 for _, (value, _) in self.terms)


@dataclass(frozen=True)
class ColumnBound:
    """A column at which the elements that are kept start or end."""

    at: LinearInColumn
    is_end: bool


@dataclass(frozen=True)
class Flag:
    """A condition that is the same for all columns of a row."""

    value: Input


def outer(op: tile.MapOp, value: SSAValue) -> Input:
    """Return the operand of a map that an argument of its region stands for."""
    assert isinstance(value, BlockArgument)
    return op.inputs[value.index], op.span(value.index)


def settled(op: tile.MapOp, value: SSAValue) -> tuple[tile.MapOp, SSAValue]:
    """Return the map over columns alone that computes a value, if there is one."""
    while isinstance(value, BlockArgument):
        source, span = outer(op, value)
        if span != column_dims(op) or not isinstance(source, OpResult):
            break
        if not isinstance(source.owner, tile.MapOp):
            break
        op, value = source.owner, yielded(source.owner.body.block)[source.index]
    return op, value


def column_dims(op: tile.MapOp) -> tuple[int]:
    """Return the dimension of columns in a map over a matrix or over its columns."""
    return (len(op.shape) - 1,)


def linear_in_column(op: tile.MapOp, value: SSAValue) -> LinearInColumn | None:
    """Return a number of a map's region as a linear function of the column, or None."""
    op, value = settled(op, value)
    if (number := int_constant(value)) is not None:
        return LinearInColumn(constant=number)
    if isinstance(value, BlockArgument):
        source, span = outer(op, value)
        if span == column_dims(op) and isinstance(source.owner, tile.IotaOp):
            return LinearInColumn(1, ((1, (source.owner.start, UNIFORM)),))
        uniform = not set(column_dims(op)) & set(span)
        return LinearInColumn(terms=((1, (source, span)),)) if uniform else None
    match value.owner:
        case arith.ExtSIOp(input=inner):
            return linear_in_column(op, inner)
        case arith.AddiOp(lhs=a, rhs=b) | arith.SubiOp(lhs=a, rhs=b):
            first, second = linear_in_column(op, a), linear_in_column(op, b)
            if not (first and second and first.is_exact and second.is_exact):
                return None
            sign = 1 if isinstance(value.owner, arith.AddiOp) else -1
            return first.plus(second, sign)
        case _:
            return None


def bounds(op: tile.MapOp, condition: SSAValue) -> Sequence[ColumnBound | Flag] | None:
    """Return the bounds of the columns for which a condition holds, or None."""
    if isinstance(condition, BlockArgument):
        if not set(column_dims(op)) & set(op.span(condition.index)):
            return [Flag(outer(op, condition))]
        by_column, value = settled(op, condition)
        if value is condition:
            return None
        found = [bounds(by_column, c) for c in conjuncts(value)]
        return [b for each in found for b in each or ()] if all(found) else None
    compare = condition.owner
    if not isinstance(compare, arith.CmpiOp):
        return None
    predicate = predicate_of(compare)
    a, b = linear_in_column(op, compare.lhs), linear_in_column(op, compare.rhs)
    if a is None or b is None or predicate not in BOUNDING:
        return None
    if not all(side.is_exact or not side.column for side in (a, b)):
        return None
    difference = a.plus(b, -1)
    match difference.column:
        case -1:
            at, predicate = replace(difference, column=0), exchanged(predicate)
        case 1:
            at = LinearInColumn().plus(replace(difference, column=0), -1)
        case _:
            return None
    after = replace(at, constant=at.constant + 1)
    return {
        "sge": [ColumnBound(at, False)],
        "sgt": [ColumnBound(after, False)],
        "sle": [ColumnBound(after, True)],
        "slt": [ColumnBound(at, True)],
        "eq": [ColumnBound(at, False), ColumnBound(after, True)],
    }[predicate]


def conjuncts(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the conditions that all must hold for a condition to hold."""
    if isinstance(value.owner, arith.AndIOp):
        yield from conjuncts(value.owner.lhs)
        yield from conjuncts(value.owner.rhs)
    elif int_constant(value) != -1:
        yield value


def keep_columns(op: tile.MapOp, number: int) -> None:
    """Take the bounds of columns out of a map's result, if it has any."""
    block, result = op.body.block, op.results[number]
    end_of_block, value = block.last_op, yielded(block)[number]
    select = value.owner
    if not isinstance(select, arith.SelectOp) or value.type != f32:
        return
    if (other := float_constant(select.rhs)) is None:
        return
    conditions = list(conjuncts(select.cond))
    found = {c: b for c in conditions if (b := bounds(op, c)) is not None}
    kept = [b for each in found.values() for b in each]
    if not any(isinstance(b, ColumnBound) for b in kept):
        return
    assert isinstance(end_of_block, flex.YieldOp)
    inner, selected = ScalarCode(InsertPoint.before(end_of_block)), select.lhs
    for condition in conditions:
        if condition not in found:
            selected = inner.select(condition, selected, select.rhs)
    end_of_block.operands[number] = selected
    first, end = write_bounds(op, kept)
    source = result
    if isinstance(selected, BlockArgument) and op.span(selected.index) == FULL:
        source = op.inputs[selected.index]
    keep = tile.KeepColumnsOp(source, first, end, other)
    keep.result.name_hint = result.name_hint
    result.replace_all_uses_with(keep.result)
    keep.operands[0] = source
    Rewriter.insert_op(keep, InsertPoint.after(op))


def write_bounds(op: tile.MapOp, found: Sequence[ColumnBound | Flag]) -> list[SSAValue]:
    """Write the first column that is kept of each row and the one after the last."""
    rows, columns = op.shape
    code, sides = ScalarCode(InsertPoint.before(op)), list[SSAValue]()
    for is_end in (False, True):
        flags = [f.value for f in found if isinstance(f, Flag) and is_end]
        ends = [
            b.at for b in found if isinstance(b, ColumnBound) and b.is_end == is_end
        ]
        if ends or flags:
            sides.append(write_side(code, op.shape, ends, flags, is_end))
        else:
            side = code.const(columns if is_end else 0)
            sides.append(code.insert(tile.FullOp(side, tile.TileType(i32, [rows]))))
    return sides


def write_side(
    code: ScalarCode,
    shape: Sequence[int],
    ends: Sequence[LinearInColumn],
    flags: Sequence[Input],
    is_end: bool,
) -> SSAValue:
    """Write the last of some first columns, or the first of some ends.

    A row for which a flag does not hold ends at column 0.
    """
    terms = dict.fromkeys(value for at in ends for _, value in at.terms)
    inputs = list(dict.fromkeys([*terms, *flags]))

    def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
        given = dict(zip(inputs, args, strict=True))
        numbers = {value: wide(code, given[value]) for value in terms}
        least, most = code.const(0, i64), code.const(shape[1], i64)
        side = most if is_end else least
        for end in ends:
            at = code.const(end.constant, i64)
            for sign, value in end.terms:
                write = code.add if sign > 0 else code.sub
                at = write(at, numbers[value])
            side = (code.min if is_end else code.max)(side, at)
        side = code.max(side, least) if is_end else code.min(side, most)
        for flag in flags:
            side = code.select(given[flag], side, least)
        return code.insert(arith.TruncIOp(side, i32))

    name = "end_column" if is_end else "first_column"
    return build_map(code, shape[:1], inputs, body, name)


def wide(code: ScalarCode, value: SSAValue) -> SSAValue:
    """Return a number in 64 bits, or the closest one that leaves room for sums."""
    if value.type != i64:
        return code.insert(arith.ExtSIOp(value, i64))
    least, most = code.const(-ROOM, i64), code.const(ROOM, i64)
    return code.min(code.max(value, least), most)


def is_in_registers(op: tile.MapOp) -> bool:
    """Return True if a map computes a tile as a product has it in registers."""
    return len(op.shape) == 2 and 8 <= op.shape[1] <= MOST_COLUMNS


@dataclass(frozen=True)
class TileKeepColumnsPass(ModulePass):
    """Mask columns of tiles in registers by bounds for each row."""

    name = "tile-keep-columns"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        roles = [role for role in op.walk() if isinstance(role, RoleOp)]
        for inner in [o for role in roles for o in role.walk()]:
            if isinstance(inner, tile.MapOp) and is_in_registers(inner):
                for number in range(len(inner.results)):
                    keep_columns(inner, number)
