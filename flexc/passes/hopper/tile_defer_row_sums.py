"""`tile-defer-row-sums`: add up what threads hold of a row after the loop.

A row of a tile is spread over several threads. A loop that carries a sum of rows lets
them exchange values in each iteration:

    l = 0
    for i:
      l = l * a + sum(p)

Instead, each thread carries the sum of its own elements:

    l = [0, ...]
    for i:
      l = l * a + partial_sums(p)
    l = sum(l)

The pass applies to sums that start at 0 and that an iteration uses once, in a map that
may scale the carried sum. Sums of floats are added in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import ReduceKind, TileType, shape_of
from flexc.dialects.tile.schedule import PartsOp
from flexc.passes.tile.map_builder import FULL, ROW, UNIFORM
from flexc.passes.tile.tile_access import has_count, is_zeros

LANES = 8
"""The columns after which the same thread holds elements of a product again."""

MOST_PARTS = 2
"""The most parts whose threads have registers for a further element for each row."""


@dataclass(frozen=True)
class CarriedSum:
    """A sum over rows that a loop carries."""

    loop: scf.ForOp
    number: int
    """The index of the sum among the loop's results."""
    update: tile.MapOp
    """The map that computes the carried sum of the next iteration."""
    row_sum: tile.ReduceOp
    """The sum over an iteration's tile."""

    def defer(self) -> None:
        """Carry a sum for each of `LANES` columns, and add them up after the loop."""
        loop, number = self.loop, self.number
        start, arg = loop.iter_args[number], loop.body.block.args[1 + number]
        assert isinstance(start.owner, tile.FullOp)
        assert isinstance(start.type, TileType)
        wide = TileType(start.type.element_type, [*start.type.get_shape(), LANES])
        zeros = tile.FullOp(start.owner.value, wide)
        zeros.result.name_hint = start.name_hint
        Rewriter.insert_op(zeros, InsertPoint.before(loop))
        loop.operands[3 + number] = zeros.result
        Rewriter.replace_value_with_new_type(arg, wide)
        result = Rewriter.replace_value_with_new_type(loop.results[number], wide)
        self.replace_update(wide)
        total = tile.ReduceOp(ReduceKind.SUM, result, 1)
        total.result.name_hint = result.name_hint
        result.replace_all_uses_with(total.result)
        total.operands[0] = result
        Rewriter.insert_op(total, InsertPoint.after(loop))

    def replace_update(self, type_: TileType) -> None:
        """Compute the sums of the next iteration, one for each column of a type."""
        partial = tile.PartialSumsOp(self.row_sum.input, LANES)
        partial.result.name_hint = self.row_sum.result.name_hint
        Rewriter.replace_op(self.row_sum, partial)
        inputs = list(self.update.inputs)
        spans = {2: FULL, 1: ROW, 0: UNIFORM}
        ranks = [len(shape_of(v.type)) for v in inputs]
        body = self.update.body
        self.update.detach_region(body)
        new = tile.MapOp(inputs, [spans[r] for r in ranks], [type_], body)
        new.results[0].name_hint = self.update.results[0].name_hint
        Rewriter.replace_op(self.update, new)


def carried_sum(loop: scf.ForOp, number: int) -> CarriedSum | None:
    """Return the sum that a loop carries as its result `number`, if it is one."""
    block = loop.body.block
    arg, last = block.args[1 + number], yielded(block)[number]
    update = last.owner
    if not is_zeros(loop.iter_args[number]) or len(shape_of(arg.type)) != 1:
        return None
    if not isinstance(update, tile.MapOp) or len(update.results) != 1:
        return None
    if update.parent is not block or not last.has_one_use() or not arg.has_one_use():
        return None
    if arg not in update.inputs:
        return None
    for place, value in enumerate(update.inputs):
        if is_row_sum(value) and adds(update, update.inputs.index(arg), place):
            assert isinstance(value.owner, tile.ReduceOp)
            return CarriedSum(loop, number, update, value.owner)
    return None


def is_row_sum(value: SSAValue) -> bool:
    """Return True for a sum over all columns that has one use."""
    op = value.owner
    return (
        isinstance(op, tile.ReduceOp)
        and op.kind.data == ReduceKind.SUM
        and op.dim.value.data == 1
        and not has_count(op)
        and value.has_one_use()
        and shape_of(op.input.type)[1] % LANES == 0
    )


def adds(update: tile.MapOp, carried: int, added: int) -> bool:
    """Return True if a map adds an input to another one, which it may scale."""
    block = update.body.block
    total, term = block.args[carried], block.args[added]
    if not (total.has_one_use() and term.has_one_use()):
        return False
    (result,) = yielded(block)
    match result.owner:
        case math.FmaOp(c=c) as op:
            return c is term and is_scaled(total, op.a, op.b)
        case arith.AddfOp(lhs=lhs, rhs=rhs) if term in (lhs, rhs):
            other = lhs if rhs is term else rhs
            if isinstance(product := other.owner, arith.MulfOp):
                return other.has_one_use() and is_scaled(total, *product.operands)
            return other is total
        case _:
            return False


def is_scaled(total: SSAValue, a: SSAValue, b: SSAValue) -> bool:
    """Return True if a product of two values is a sum times an input of its map."""
    return total in (a, b) and isinstance(b if a is total else a, BlockArgument)


@dataclass(frozen=True)
class TileDeferRowSumsPass(ModulePass):
    """Add up the elements of a row after the loop that sums rows."""

    name = "tile-defer-row-sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for parts in list(op.walk()):
            if not isinstance(parts, PartsOp) or parts.count.value.data > MOST_PARTS:
                continue
            for loop in [o for o in parts.walk() if isinstance(o, scf.ForOp)]:
                for number in range(len(loop.results)):
                    if (found := carried_sum(loop, number)) is not None:
                        found.defer()
