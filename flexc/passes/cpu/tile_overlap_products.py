"""Passes that let a matrix unit and vectors work at the same time.

`tile-early-weights`: compute weights before the largest scores of their block are
known. The map of the weights then reads scores once, right after their product.

1. A row keeps its maximum until a score is far above it (`LazySoftmax`). So weights are
   computed relative to the kept maximum, and again in the branch that scales the sums.
2. A row that has no maximum, which is -inf, takes its first score of the block.
3. Scores are those of the product. A mod may add a term that grows with each block, so
   that most weights would be computed twice.

`tile-overlap-products`: compute a product of the next iteration beside a map.

1. The map reads one product of the matrix unit, and computes one function: it takes
   about as long. The product depends on nothing but the loop's index.
2. The loop carries the product: an iteration maps the product that the one before
   computed, and computes the next one. The first product is computed before the loop,
   if it has iterations. In the last iteration the next product has no rows.
3. The product is `beside` the map: its instructions lie between the map's rows.

Both apply to products that have room in a first-level cache twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tidy import erase_dead
from flexc.passes.tile.map_builder import build_row_map
from flexc.passes.tile.tile_values import is_tile, yielded

CACHE_BYTES = 48 << 10
"""The first-level cache of cores with a matrix unit."""

Values = dict[SSAValue, SSAValue]


def clone_into(code: ScalarCode, ops: Sequence[Operation], values: Values) -> None:
    """Append clones of ops with mapped operands; map the results in `values`."""
    for op in ops:
        code.builder.insert(op.clone(values))


def last_op(block: Block) -> Operation:
    assert block.last_op is not None
    return block.last_op


def is_large(value: SSAValue) -> bool:
    """Return True if a value is a tile, or memory that an op defines."""
    is_memory = isinstance(value.type, TensorType)
    return is_tile(value) or (is_memory and isinstance(value.owner, Operation))


def address_ops(op: Operation) -> list[Operation] | None:
    """Return the ops of a loop's body that an op's scalars depend on, in order.

    Return None if a scalar depends on more than the loop's index.
    """
    block = op.parent_block()
    assert block is not None
    found: set[Operation] = set()
    pending = [v for v in op.operands if not is_tile(v)]
    while pending:
        value = pending.pop()
        owner = value.owner
        if isinstance(owner, Block):
            if owner is block and value is not block.args[0]:
                return None
        elif owner.parent is block and owner not in found:
            is_pure = owner.dialect_name() == "arith" or is_side_effect_free(owner)
            if not is_pure or owner.regions:
                return None
            if any(is_large(v) for v in (*owner.operands, value)):
                return None
            found.add(owner)
            pending += owner.operands
    return [inner for inner in block.ops if inner in found]


def may_be_early(product: SSAValue) -> bool:
    """Return True if a matrix unit may compute a product an iteration earlier."""
    op = product.owner
    if not isinstance(op, tile.RegisterProductOp) or not op.register_tile.is_of_unit:
        return False
    (rows, columns), (inner, _) = shape_of(op.result.type), shape_of(op.rhs.type)
    block, least = op.parent_block(), op.register_tile.rows.data
    is_whole = rows >= least and columns % least == 0 and inner % tile.TILE_DEPTH == 0
    return (
        isinstance(op.parent_op(), scf.ForOp)
        and is_whole
        and op.base is not None
        and op.acc is None
        and op.inner is None
        and 2 * 4 * rows * columns <= CACHE_BYTES
        and (isinstance(op.rhs.owner, Block) or op.rhs.owner.parent is not block)
        and address_ops(op) is not None
    )


@dataclass(frozen=True)
class EarlyWeights:
    """The weights of a block, which depend on a choice of rows' maxima."""

    choice: tile.MapOp
    reduce: tile.ReduceOp
    kept: SSAValue
    branch: scf.IfOp
    """The branch that scales sums."""

    @classmethod
    def of(cls, loop: scf.ForOp) -> EarlyWeights | None:
        """Return the weights of a loop that may be computed early."""
        for op in loop.body.block.ops:
            if (found := cls.at(op)) is not None and found.weights is not None:
                return found
        return None

    @classmethod
    def at(cls, op: Operation) -> EarlyWeights | None:
        """Return the weights that depend on an op, if that is a choice of maxima."""
        if not isinstance(op, tile.MapOp) or len(op.inputs) != 3 or len(op.shape) != 1:
            return None
        chosen = yielded(op.body.block)[0].owner
        args = list(op.body.block.args)
        if not isinstance(chosen, arith.SelectOp) or list(chosen.operands) != args:
            return None
        flags, largest, kept = op.inputs
        reduce, branch = largest.owner, branch_on(flags)
        if not isinstance(reduce, tile.ReduceOp) or not may_be_early(reduce.input):
            return None
        if not isinstance(kept, BlockArgument) or kept.block is not op.parent:
            return None
        if branch is None or branch.parent is not op.parent:
            return None
        return cls(op, reduce, kept, branch)

    @property
    def weights(self) -> list[Operation] | None:
        """The ops that depend on the choice but not on the branch, in order.

        Return None if not all can be computed before the largest scores are.
        """
        chosen = {self.choice.results[0]}
        after: set[SSAValue] = set(self.branch.results)
        found: list[Operation] = []
        assert self.choice.parent is not None
        for op in self.choice.parent.ops:
            operands = set(op.operands)
            if op is self.branch or isinstance(op, scf.YieldOp):
                continue
            if operands & after:
                after |= set(op.results)
            elif operands & chosen:
                is_known = all(self.is_early(v) for v in operands - chosen)
                if not (is_known and isinstance(op, WEIGHING)):
                    return None
                chosen |= set(op.results)
                found.append(op)
        return found

    def is_early(self, value: SSAValue) -> bool:
        """Return True if a value is known before the largest scores are."""
        owner = value.owner
        if isinstance(owner, Block) or owner.parent is not self.choice.parent:
            return True
        return owner.is_before_in_block(self.reduce)

    def hoist(self) -> None:
        """Compute weights before the largest scores, and again in the branch."""
        weights = self.weights
        assert weights is not None
        code = ScalarCode(InsertPoint.before(self.reduce))
        one = code.const(1)
        first = tile.ReduceOp(ReduceKind.MAX, self.reduce.input, 0, one)
        inputs = [self.kept, code.insert(first, "first")]
        known = build_row_map(code, inputs, _or_first, self.kept.name_hint or "kept")
        self.kept.replace_uses_with_if(
            known, lambda use: use.operation is not known.owner
        )
        early: Values = {self.choice.results[0]: known}
        clone_into(code, weights, early)
        self.repeat([self.choice, *weights], early)

    def repeat(self, ops: Sequence[Operation], early: Values) -> None:
        """Move ops into the branch; without it their results are the early ones."""
        old = self.branch
        then, otherwise = (region.block for region in old.regions)
        code = ScalarCode(InsertPoint.at_start(then))
        for op in ops:
            op.detach()
            code.builder.insert(op)
        inside = set(old.walk())
        used = [
            value
            for op in ops
            for value in op.results
            if any(use.operation not in inside for use in value.uses)
        ]
        # Sums are scaled by the kept maxima, which the last choice may overwrite.
        again = ScalarCode(InsertPoint.before(last_op(then)))
        chosen: Values = {}
        clone_into(again, [self.choice], chosen)
        for block, values in ((then, chosen), (otherwise, early)):
            last = last_op(block)
            last.operands = [*last.operands, *(values.get(v, v) for v in used)]
        types: list[Attribute] = [*old.result_types, *(v.type for v in used)]
        taken, not_taken = [old.detach_region(r) for r in list(old.regions)]
        new = scf.IfOp(old.cond, types, taken, not_taken)
        Rewriter.insert_op(new, InsertPoint.before(old))
        inside = set(new.walk())
        for value, result in zip([*old.results, *used], new.results, strict=True):
            result.name_hint = value.name_hint
            value.replace_uses_with_if(result, lambda use: use.operation not in inside)
        Rewriter.erase_op(old)


WEIGHING = (tile.MapOp, tile.ReduceOp, tile.PackOp)
"""Ops between the largest scores and the weights."""


def branch_on(flags: SSAValue) -> scf.IfOp | None:
    """Return the branch that runs if any flag is set."""
    for use in flags.uses:
        if isinstance(live := use.operation, tile.LiveRangeOp):
            tests = (test.operation for test in live.length.uses)
            users = (u.operation for test in tests for u in test.results[0].uses)
            return next((op for op in users if isinstance(op, scf.IfOp)), None)
    return None


def _or_first(code: ScalarCode, kept: SSAValue, first: SSAValue) -> SSAValue:
    """Write the kept maximum, or the first score if there is none."""
    none = code.cmpf("oeq", kept, code.const(-math.inf, kept.type))
    return code.select(none, first, kept)


@dataclass(frozen=True)
class TileEarlyWeightsPass(ModulePass):
    """Compute weights relative to maxima of earlier blocks."""

    name = "tile-early-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [o for o in op.walk() if isinstance(o, scf.ForOp)]:
            if (early := EarlyWeights.of(loop)) is not None:
                early.hoist()


def computes_one_function(op: tile.PanelMapOp) -> bool:
    """Return True if a map computes one function of each element."""
    cheap = (math_dialect.FmaOp, math_dialect.AbsFOp)
    ops = (inner for inner in op.body.block.ops if inner.dialect_name() == "math")
    return sum(not isinstance(inner, cheap) for inner in ops) == 1


@dataclass(frozen=True)
class EarlyProduct:
    """A product, and the map beside which the next iteration's is computed."""

    loop: scf.ForOp
    product: tile.RegisterProductOp
    reader: tile.PanelMapOp

    @classmethod
    def of(cls, loop: scf.ForOp) -> EarlyProduct | None:
        """Return the first such product of a loop."""
        for op in loop.body.block.ops:
            if not isinstance(op, tile.PanelMapOp) or not computes_one_function(op):
                continue
            owners = dict.fromkeys(v.owner for v in op.inputs)
            products = [o for o in owners if isinstance(o, tile.RegisterProductOp)]
            if len(products) != 1 or not may_be_early((product := products[0]).result):
                continue
            if product.parent is op.parent and product.rows is op.count:
                return cls(loop, product, op)
        return None

    def carry(self) -> None:
        """Let the loop carry the product, and compute the next one beside the map."""
        loop, body, old = self.loop, self.loop.body.block, self.product
        address, name = address_ops(old), old.result.name_hint or "product"
        assert address is not None
        first = self.first(address)
        carried = body.insert_arg(old.result.type, len(body.args))
        carried.name_hint = name
        old.result.replace_all_uses_with(carried)
        following = self.following(address)
        following.result.name_hint = f"{name}_next"
        last_op(body).operands = [*last_op(body).operands, following.result]
        Rewriter.erase_op(old)
        inits = [*loop.iter_args, first]
        region = loop.detach_region(loop.body)
        new = scf.ForOp(loop.lb, loop.ub, loop.step, inits, region)
        new.attributes = dict(loop.attributes)
        for result, value in zip(loop.results, new.results, strict=False):
            value.name_hint = result.name_hint
        Rewriter.replace_op(loop, new, new.results[:-1])

    def following(self, address: Sequence[Operation]) -> tile.RegisterProductOp:
        """Write the next iteration's product before the map."""
        loop, old = self.loop, self.product
        code, i = ScalarCode(InsertPoint.before(self.reader)), loop.body.block.args[0]
        index = code.add(i, loop.step)
        follows = code.cmp("slt", index, loop.ub)
        # A table may end with the last iteration's entry.
        values: Values = {i: code.select(follows, index, i)}
        clone_into(code, address, values)
        count = old.rows or code.const(shape_of(old.result.type)[0])
        rows = code.select(follows, values.get(count, count), code.const(0), "rows")
        assert old.base is not None
        new = tile.RegisterProductOp(
            *(old.lhs, old.rhs, None, old.result.type, old.register_tile),
            values.get(old.base, old.base),
            [values.get(v, v) for v in old.strides],
            rows,
        )
        new.beside = UnitAttr()
        code.builder.insert(new)
        return new

    def first(self, address: Sequence[Operation]) -> SSAValue:
        """Write the first iteration's product, if there is one, before the loop."""
        loop, type_ = self.loop, self.product.result.type
        code = ScalarCode(InsertPoint.before(loop))
        runs = code.cmp("slt", loop.lb, loop.ub)
        then, otherwise = Block(), Block()
        values: Values = {loop.body.block.args[0]: loop.lb}
        clone_into(ScalarCode(then), [*address, self.product], values)
        then.add_op(scf.YieldOp(values[self.product.result]))
        inner = ScalarCode(otherwise)
        zero = inner.const(0.0, tile.element_of(type_))
        otherwise.add_op(scf.YieldOp(inner.insert(tile.FullOp(zero, type_))))
        op = scf.IfOp(runs, [type_], Region(then), Region(otherwise))
        return code.insert(op, self.product.result.name_hint)


@dataclass(frozen=True)
class TileOverlapProductsPass(ModulePass):
    """Compute products of the next iteration beside maps."""

    name = "tile-overlap-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [o for o in op.walk() if isinstance(o, scf.ForOp)]:
            if (early := EarlyProduct.of(loop)) is not None:
                early.carry()
        erase_dead(op.body)
