"""`tile-early-weights`: compute weights before the largest scores of a block are known.

One map then computes scores, their maxima and their weights, right after the product.

1. The weights of a row are relative to its reference (`tile.reference`), which is an
   earlier maximum until a score is far above it (`LazySoftmax`). Here the reference
   depends on a guess: the score of the block's first column, and what a mod makes of
   the same product at the last column. If the guess is above the reference, the row
   gets a new one, ahead of the guess, so that scores that grow with the column seldom
   replace it.
2. The reference may be wrong: a score is far above it, or all scores are far below a
   new one. A branch then takes it from the largest scores, and computes weights again.
3. A row without a reference, which is -inf, has sums of 0, which need no scaling.
4. A guess and the branch repeat a mod, so it computes no long function. Along columns
   it depends on positions, and on tensors that it reads by them. A mask hides ends, so
   blocks with one have no guess.

A result of the product must fit in a first-level cache. With a mod two must: without a
product beside it (`tile-overlap-products`), one map is slower than two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import tile
from flexc.dialects.constants import float_constant, int_constant
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import ReduceKind, TileType, element_of
from flexc.passes.cpu.tile_overlap_products import early_ops, is_function
from flexc.passes.cpu.tile_panel_maps import is_known_before
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges.float_intervals import F32
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import FULL, ROW, UNIFORM, build_row_map

AHEAD = 16.0
"""The exponent of 2 of a new reference, relative to the score that it is ahead of.

Other distances are parts of it.
"""

NEAR = 0.25
"""The distance above a kept reference up to which a guess does not replace it."""

BELOW = 2.0
"""The distance below a new reference from which the largest score is far below it."""

MOST_AHEAD = 2.0**20
"""The greatest distance in scores, for a factor near 0."""

Values = dict[SSAValue, SSAValue]


@dataclass(frozen=True)
class Scores:
    """The scores of a block: the result of a product, or a mod of it."""

    largest: tile.ReduceOp
    """The largest scores of rows."""
    product: SSAValue
    mod: tile.MapOp | None

    @classmethod
    def of(cls, largest: Operation | Block) -> Scores | None:
        """Return the scores of which an op finds the largest, if they can be guessed.

        A product beside the map needs a second place in a cache.
        """
        if not isinstance(largest, tile.ReduceOp) or largest.dim.value.data != 0:
            return None
        if largest.kind.data is not ReduceKind.MAX:
            return None
        value, mod = largest.input, largest.input.owner
        if not isinstance(mod, tile.MapOp):
            found, places = cls(largest, value, None), 1
        elif (product := product_of(mod)) is not None:
            found, places = cls(largest, product, mod), 2
        else:
            return None
        return None if early_ops(found.product, places) is None else found

    @property
    def value(self) -> SSAValue:
        return self.largest.input

    @property
    def start(self) -> Operation:
        """The op before which the largest scores are guessed."""
        return self.mod or self.largest

    def guess(self, code: ScalarCode) -> SSAValue:
        """Write a number near the largest score of each row."""
        one = code.const(1)
        reduce = tile.ReduceOp(ReduceKind.MAX, self.product, 0, one)
        first = code.insert(reduce, "first")
        if self.mod is None:
            return first
        last = code.sub(self.largest.count or code.const(self.mod.shape[0]), one)
        ends = [modified(code, self.mod, first, i) for i in (None, last)]
        return build_row_map(code, ends, _finite_maximum, "guess")


def product_of(mod: tile.MapOp) -> SSAValue | None:
    """Return the product of which a map is a mod that can be guessed, or None."""
    products: list[SSAValue] = []
    for i, operand in enumerate(mod.inputs):
        if mod.span(i) == FULL:
            products.append(operand)
        elif mod.span(i) == ROW and not is_of_positions(operand):
            return None
    if any(is_function(op) or is_hidden(op) for op in mod.body.block.ops):
        return None
    return products[0] if len(products) == len(mod.results) == 1 else None


def is_hidden(op: Operation) -> bool:
    """Return True if an op is the score of a hidden key, which a mask uses."""
    return any(float_constant(result) == -math.inf for result in op.results)


def is_of_positions(value: SSAValue) -> bool:
    """Return True if positions, numbers and tensors determine each column's value."""
    op = value.owner
    if not isinstance(op, tile.MapOp):
        return isinstance(op, tile.IotaOp)
    spans = [op.span(i) for i in range(len(op.inputs))]
    operands = zip(op.inputs, spans, strict=True)
    return all(span == UNIFORM or is_of_positions(v) for v, span in operands)


def at_column(code: ScalarCode, value: SSAValue, index: SSAValue | None) -> SSAValue:
    """Write the value of the column at an index, or at 0."""
    op = value.owner
    if isinstance(op, tile.IotaOp):
        return op.start if index is None else code.add(op.start, index)
    assert isinstance(op, tile.MapOp)
    operands = [
        v if op.span(i) == UNIFORM else at_column(code, v, index)
        for i, v in enumerate(op.inputs)
    ]
    types = [element_of(result.type) for result in op.results]
    number = tile.MapOp(operands, [UNIFORM] * len(operands), types, op.body.clone())
    code.builder.insert(number)
    return number.results[op.results.index(value)]


def modified(
    code: ScalarCode, mod: tile.MapOp, products: SSAValue, index: SSAValue | None
) -> SSAValue:
    """Write the mod of a product for each row, at the index of a column, or at 0."""

    def operand(i: int, value: SSAValue) -> SSAValue:
        if mod.span(i) == FULL:
            return products
        return at_column(code, value, index) if mod.span(i) == ROW else value

    values = [operand(i, value) for i, value in enumerate(mod.inputs)]
    spans = [ROW if isinstance(v.type, TileType) else UNIFORM for v in values]
    op = tile.MapOp(values, spans, [products.type], mod.body.clone())
    return code.insert(op, "end")


@dataclass(frozen=True)
class EarlyWeights:
    """The weights of a block, which depend on the choice of rows' references."""

    choice: tile.MapOp
    above: tile.MapOp
    """The map that compares the largest scores with the kept references."""
    kept: SSAValue
    scores: Scores
    branch: scf.IfOp
    """The branch that scales sums."""

    @classmethod
    def at(cls, op: tile.MapOp) -> EarlyWeights | None:
        """Return the weights that depend on a choice, if they may be early."""
        if tile.REFERENCE not in op.attributes or len(op.inputs) != 3:
            return None
        flags, row_max, kept = op.inputs
        above, scores, branch = flags.owner, Scores.of(row_max.owner), branch_on(flags)
        if scores is None or branch is None or not isinstance(above, tile.MapOp):
            return None
        if list(above.inputs[:-1]) != [row_max, kept]:
            return None
        found = cls(op, above, kept, scores, branch)
        return found if found.is_sound() else None

    @property
    def factor(self) -> SSAValue:
        """The factor that makes scores exponents of 2."""
        return self.above.inputs[-1]

    def is_sound(self) -> bool:
        """Return True if weights can be computed before the largest scores are."""
        loop, kept, scores = self.choice.parent_op(), self.kept, self.scores
        if not isinstance(loop, scf.ForOp) or not isinstance(kept, BlockArgument):
            return False
        block, result = loop.body.block, self.choice.results[0]
        if kept.block is not block or yielded(block)[kept.index - 1] is not result:
            return False
        if result.type != TileType(f32, self.choice.shape) or self.factor.type != f32:
            return False
        ops = scores.product.owner, scores.start, scores.largest, self.branch
        if any(op.parent is not block for op in ops):
            return False
        count, weights = scores.largest.count, self.weights
        if count is not None and not is_known_before(count, scores.start):
            return False
        if weights is None or all(scores.value not in op.operands for op in weights):
            return False
        return is_known_before(self.factor, loop)

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
            operands = {value for inner in op.walk() for value in inner.operands}
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
        return value is self.scores.value or owner.is_before_in_block(self.scores.start)

    def hoist(self) -> None:
        """Compute weights before the largest scores, and again if they are wrong."""
        weights = self.weights
        assert weights is not None
        ahead = self.ahead()
        code = ScalarCode(InsertPoint.before(self.scores.start))
        guess = self.scores.guess(code)
        reference = self.reference(code, guess, ahead)
        moves = build_row_map(code, [reference, self.kept], _moves, "moves")
        early: Values = {self.choice.results[0]: reference}
        early[self.branch.cond] = is_any(code, moves)
        reads = [self.scores.value in op.operands for op in weights].index(True)
        code.clone(weights[:reads], early)
        code = ScalarCode(InsertPoint.before(self.scores.largest))
        code.clone(weights[reads:], early)

        code = ScalarCode(InsertPoint.before(self.choice))
        wrong = self.is_wrong(code, reference, ahead)
        block, again = Block(), Values()
        then = ScalarCode(block)
        if self.scores.mod is not None:  # No tile of scores is kept.
            then.clone([self.scores.mod], again)
        largest = self.scores.largest.result
        again[self.choice.results[0]] = self.reference(then, largest, ahead)
        then.clone(weights, again)
        again[self.branch.cond] = then.flag(True)
        self.replace(wrong, block, again, early)

    def ahead(self) -> SSAValue:
        """Write, before the loop, the distance of a new reference from a score."""
        loop = self.choice.parent_op()
        assert loop is not None
        code = ScalarCode(InsertPoint.before(loop))
        distance = code.divf(code.const(AHEAD, f32), self.factor)
        return code.minnumf(distance, code.const(MOST_AHEAD, f32), "ahead")

    def reference(self, code: ScalarCode, score: SSAValue, ahead: SSAValue) -> SSAValue:
        """Write the references of rows: kept ones, or new ones ahead of scores."""

        def body(c: ScalarCode, s: SSAValue, m: SSAValue, ahead: SSAValue) -> SSAValue:
            near = c.addf(m, c.mulf(ahead, c.const(NEAR, f32)))
            return c.select(c.cmpf("ogt", s, near), c.addf(s, ahead), m)

        name = self.choice.results[0].name_hint or "m"
        return build_row_map(code, [score, self.kept, ahead], body, name)

    def is_wrong(
        self, code: ScalarCode, reference: SSAValue, ahead: SSAValue
    ) -> SSAValue:
        """Write True if any largest score is far above, or below, its reference."""
        largest = self.scores.largest.result
        wrong = self.is_above(code, largest, reference)
        if self.scores.mod is not None:  # Without a mod, the guess is a score.
            inputs = [reference, self.kept, ahead]
            least = build_row_map(code, inputs, _least, "least")
            flags = [wrong, self.is_above(code, least, largest)]
            wrong = build_row_map(code, flags, ScalarCode.or_, "wrong")
        return is_any(code, wrong)

    def is_above(self, code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
        """Write which rows' scores are far above others."""
        values: Values = {self.above.inputs[0]: a, self.above.inputs[1]: b}
        code.clone([self.above], values)
        return values[self.above.results[0]]

    def replace(
        self, cond: SSAValue, then: Block, again: Values, early: Values
    ) -> None:
        """Replace the choice, the weights and the branch's condition.

        They become those computed `again`, by `then`, if `cond` is true; else the early
        ones.
        """
        weights = self.weights
        assert weights is not None
        results = [r for op in (self.choice, *weights) for r in op.results]
        used: list[SSAValue] = [
            result
            for result in results
            if {use.operation for use in result.uses} - {*weights}
        ]
        used.append(self.branch.cond)
        then.add_op(scf.YieldOp(*(again[v] for v in used)))
        otherwise = Block([scf.YieldOp(*(early[v] for v in used))])
        types = [v.type for v in used]
        branch = scf.IfOp(cond, types, Region(then), Region(otherwise))
        Rewriter.insert_op(branch, InsertPoint.before(self.choice))
        for value, result in zip(used, branch.results, strict=True):
            result.name_hint = value.name_hint
            value.replace_all_uses_with(result)


WEIGHING = (tile.MapOp, tile.ReduceOp, tile.PackOp)
"""Ops between the largest scores and the weights."""


def branch_on(flags: SSAValue) -> scf.IfOp | None:
    """Return the branch that runs if any flag is set, None if others read as much."""
    block = flags.owner if isinstance(flags.owner, Block) else flags.owner.parent
    assert block is not None
    for op in block.ops:
        if isinstance(op, scf.IfOp) and is_any_of(op.cond, flags):
            return op if op.cond.has_one_use() else None
    return None


def is_any_of(condition: SSAValue, flags: SSAValue) -> bool:
    """Return True for the condition that `is_any` writes."""
    test = condition.owner
    if not isinstance(test, arith.CmpiOp) or predicate_of(test) != "sgt":
        return False
    live = test.lhs.owner
    if not isinstance(live, tile.LiveRangeOp) or test.lhs is not live.length:
        return False
    return live.flags is flags and live.count is None and int_constant(test.rhs) == 0


def is_any(code: ScalarCode, flags: SSAValue) -> SSAValue:
    """Write True if any flag is set."""
    live = tile.LiveRangeOp(flags)
    code.builder.insert(live)
    return code.cmp("sgt", live.length, code.const(0))


def _moves(code: ScalarCode, reference: SSAValue, kept: SSAValue) -> SSAValue:
    """Write True if sums relative to the kept reference need scaling."""
    has_sums = code.cmpf("ogt", kept, code.const(-math.inf, f32))
    return code.and_(code.cmpf("ogt", reference, kept), has_sums)


def _least(
    code: ScalarCode, reference: SSAValue, kept: SSAValue, ahead: SSAValue
) -> SSAValue:
    """Write the score that the largest must not be far below, -inf if all may."""
    below = code.mulf(ahead, code.const(BELOW, f32))
    is_new = code.cmpf("ogt", reference, kept)
    none = code.const(-math.inf, f32)
    return code.select(is_new, code.subf(reference, below), none)


def _finite_maximum(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    """Write the greater number, at most the greatest finite one.

    An infinite reference would be wrong, also where the factor is 0.
    """
    return code.minnumf(code.maxnumf(a, b), code.const(F32.largest, f32))


@dataclass(frozen=True)
class TileEarlyWeightsPass(ModulePass):
    """Compute weights relative to a guess of the largest scores."""

    name = "tile-early-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for choice in [o for o in op.walk() if isinstance(o, tile.MapOp)]:
            if (early := EarlyWeights.at(choice)) is not None:
                early.hoist()
        region_dce(op.body)
