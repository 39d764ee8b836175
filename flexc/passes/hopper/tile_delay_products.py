"""`tile-delay-products`: compute an iteration's last product in the next iteration.

A loop's last matrix product waits for all other values of the iteration, and no op of
the iteration waits for the product. One iteration later, the product is issued together
with the first product. The ops between the two in program order overlap with it:

    s = q @ k[0];  p, a = f(s, 0)        the first iteration, without its product
    for i from 1:
      s = q @ k[i]
      o = p @ v[i - 1] + a
      p, a = f(s, o)
    o = p @ v[n - 1] + a

The loop no longer carries the product's result. The loop carries the inputs of the
product from the previous iteration: tiles, and the indices of loads that only the
product uses. The loop must run at least once, as its attribute `nonempty` says. Loops
without that attribute stay as they are.

A last product that is added to memory is delayed in the same way. It is issued after
the first product of the next iteration, and added to memory while the second one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr, i1
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.constants import int_constant
from flexc.dialects.tile.schedule import OfPartOp, TakeColumnsOp
from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(frozen=True, eq=False)
class DelayedProduct:
    """A product that only the next iteration awaits, with the loads that it needs.

    The loop carries the product's result, or the iteration adds it to memory.
    """

    loop: scf.ForOp
    dot: tile.DotOp
    number: int | None
    """The index of the product among the loop's results, if it is carried."""
    addition: tile.AddToOp | None = None
    """The op that adds the product to memory."""

    @property
    def block(self) -> Block:
        return self.loop.body.block

    @cached_property
    def total(self) -> SSAValue | None:
        """The carried sum that the product is added to."""
        return None if self.number is None else self.block.args[1 + self.number]

    @cached_property
    def ops(self) -> list[Operation]:
        """The product, loads and views for it alone, and the work on its sum.

        The ops are in program order, without the addition to memory.
        """
        found: set[Operation] = {self.dot, *self.work_on_sum()}
        if self.addition is not None:
            found.add(self.addition)
        grown = True
        while grown:
            new = {
                o.owner
                for op in found
                for o in op.operands
                if isinstance(o.owner, self.kinds)
                and o.owner.parent is self.block
                and all(use.operation in found for use in o.uses)
            }
            grown = not new <= found
            found |= new
        return [op for op in self.block.ops if op in found - {self.addition}]

    @property
    def kinds(self) -> tuple[type[Operation], ...]:
        """The ops that are delayed with the product, if it alone uses their results."""
        if self.addition is None:
            return (tile.LoadOp, tile.TransposeOp)
        # A sum over the tiles that all parts share is a chain of products. Where a
        # part's share of it lies is computed again, not carried.
        return (*VIEWS, tile.DotOp, tile.FullOp, arith.AddiOp)

    def work_on_sum(self) -> list[Operation]:
        """Return the delayed map between the carried sum and the product, if any.

        Delaying the map overlaps it with another product. This is faster in a loop
        without a branch that applies a mask, and slower in a loop with one.
        """
        owner = self.dot.acc.owner
        if not isinstance(owner, tile.MapOp) or owner.parent is not self.block:
            return []
        if not self.dot.acc.has_one_use() or self.total not in owner.operands:
            return []
        branches = any(isinstance(op, scf.IfOp) for op in self.block.ops)
        return [] if branches else [owner]

    @cached_property
    def rest(self) -> list[Operation]:
        """The ops of an iteration without the delayed ops and the terminator."""
        delayed = {*self.ops, self.addition}
        return [
            op
            for op in self.block.ops
            if op not in delayed and not isinstance(op, scf.YieldOp)
        ]

    @cached_property
    def inputs(self) -> list[SSAValue]:
        """The values of an iteration that the delayed ops use."""
        ops = self.ops if self.addition is None else [*self.ops, self.addition]
        own = {result for op in self.ops for result in op.results}
        operands = (v for op in ops for v in op.operands)
        return [v for v in dict.fromkeys(operands) if v not in own and self.varies(v)]

    def varies(self, value: SSAValue) -> bool:
        """Return True if a value is defined within the loop."""
        if isinstance(value, BlockArgument):
            return value.block is self.block
        return isinstance(value.owner, Operation) and value.owner.parent is self.block

    @cached_property
    def position(self) -> int:
        """The number of ops of `rest` before the delayed product.

        A carried product follows the last product that does not need its result, and
        another one the first product. The number is 0 if there is no such product.
        """
        before = 0
        for count, op in enumerate(self.rest):
            if any(self.total in inner.operands for inner in op.walk()):
                break
            if isinstance(op, tile.DotOp):
                before = count + 1
                if self.total is None:
                    break
        return before

    @cached_property
    def addition_position(self) -> int:
        """The number of ops of `rest` before the delayed addition to memory.

        The addition stands before the first use of the second product, so that it
        overlaps with that product.
        """
        products = [op for op in self.rest if isinstance(op, tile.DotOp)]
        if len(products) < 2:
            return self.position
        result = products[1].result
        users = (
            count
            for count, op in enumerate(self.rest)
            if any(result in inner.operands for inner in op.walk())
        )
        # Nothing uses the product if a mask is known to keep no pair.
        return next(users, len(self.rest))

    @property
    def is_worth_it(self) -> bool:
        """True if the rhs comes from memory and another product overlaps."""
        return self.position > 0 and self.dot.rhs not in self.inputs


VIEWS = (tile.TransposeOp, TakeColumnsOp, OfPartOp)
"""Ops whose results lie where their operands do."""


def delayed_product(loop: scf.ForOp) -> DelayedProduct | None:
    """Return the product that may be delayed by an iteration, if there is one."""
    block = loop.body.block
    last = block.last_op
    if "nonempty" not in loop.attributes or not isinstance(last, scf.YieldOp):
        return None
    dots = [op for op in block.ops if isinstance(op, tile.DotOp)]
    for dot in reversed(dots):
        uses = list(dot.result.uses)
        if len(uses) != 1:
            continue
        (use,) = uses
        found = None
        if use.operation is last:
            found = DelayedProduct(loop, dot, use.index)
        elif isinstance(use.operation, tile.AddToOp):
            found = DelayedProduct(loop, dot, None, use.operation)
        if found is not None:
            return found if found.is_worth_it else None
    return None


LESS = 2
"""The number of the predicate `slt` (signed less than) of `arith.cmpi`."""


def known_later(loop: scf.ForOp) -> dict[SSAValue, bool]:
    """Return outer conditions that are known after a loop's first iteration.

    A loop from begin to max(end, begin + 1) has a second iteration only if begin < end.
    """
    bound = loop.ub.owner
    if not isinstance(bound, arith.MaxSIOp) or int_constant(loop.step) != 1:
        return {}
    ends = [(bound.lhs, bound.rhs), (bound.rhs, bound.lhs)]
    found: dict[SSAValue, bool] = {}
    for end, least in ends:
        if _is_next(loop.lb, least):
            for use in end.uses:
                if _is_below(use.operation, loop.lb, end):
                    found |= _with_negations(use.operation.results[0])
    return found


def _is_next(begin: SSAValue, value: SSAValue) -> bool:
    first, second = int_constant(begin), int_constant(value)
    return first is not None and second == first + 1


def _is_below(op: Operation, begin: SSAValue, end: SSAValue) -> bool:
    """Return True if an op tests that a constant begin is below an end."""
    return (
        isinstance(op, arith.CmpiOp)
        and op.predicate.value.data == LESS
        and int_constant(op.lhs) == int_constant(begin)
        and op.rhs is end
    )


def _with_negations(test: SSAValue) -> dict[SSAValue, bool]:
    """Return a condition mapped to True, and its negations mapped to False."""
    found = {test: True}
    for use in test.uses:
        op = use.operation
        if isinstance(op, arith.XOrIOp):
            other = op.rhs if op.lhs is test else op.lhs
            if int_constant(other) is not None and other.type == i1:
                found[op.result] = not int_constant(other)
    return found


Values = dict[SSAValue, SSAValue]


class Delay:
    """The rewrite of one loop."""

    def __init__(self, delayed: DelayedProduct):
        self.delayed = delayed
        self.loop = delayed.loop
        self.block = delayed.block
        last = self.block.last_op
        assert last is not None
        self.kept = [i for i in range(len(last.operands)) if i != delayed.number]
        self.yielded = list(last.operands)

    def run(self) -> None:
        """Peel the first iteration, and compute the last product after the loop."""
        before = ScalarCode(InsertPoint.before(self.loop))
        first = self.peeled(before)
        begin = before.add(self.loop.lb, self.loop.step)
        body = self.body()
        loop = scf.ForOp(begin, self.loop.ub, self.loop.step, first, Region(body))
        loop.attributes = {
            k: v for k, v in self.loop.attributes.items() if k != "nonempty"
        }
        loop.attributes["peeled"] = UnitAttr()
        before.builder.insert(loop)
        results: list[SSAValue] = list(loop.results[: len(self.kept)])
        values = self.carried_inputs(loop.results[len(self.kept) :])
        before.clone(self.delayed.ops, values)
        total = values[self.delayed.dot.result]
        announce(total, "the last block's values")
        if self.delayed.number is not None:
            results[self.delayed.number : self.delayed.number] = [total]
        before.clone(self.addition, values)
        for new, old in zip(loop.results, self.carried(), strict=True):
            new.name_hint = old.name_hint
        Rewriter.replace_op(self.loop, [], results)

    def carried(self) -> list[SSAValue]:
        """Return the values that an iteration passes to the next."""
        return [*(self.yielded[i] for i in self.kept), *self.delayed.inputs]

    def peeled(self, code: ScalarCode) -> list[SSAValue]:
        """Append the first iteration without its product; return its carried values."""
        inits = [self.loop.lb, *self.loop.iter_args]
        values: Values = dict(zip(self.block.args, inits, strict=True))
        code.clone(self.delayed.rest, values)
        first = next(o for o in self.delayed.rest if isinstance(o, tile.DotOp))
        announce(values[first.result], "the first block")
        return [values.get(v, v) for v in self.carried()]

    def body(self) -> Block:
        """Return a loop body that computes the previous iteration's product."""
        old = self.block.args
        kept = [old[1 + i] for i in self.kept]
        types = [v.type for v in (old[0], *kept, *self.delayed.inputs)]
        block = Block(arg_types=types)
        names = [v.name_hint for v in (old[0], *kept, *self.delayed.inputs)]
        for arg, name in zip(block.args, names, strict=True):
            arg.name_hint = name
        code = ScalarCode(block)
        values: Values = {
            value: code.const(holds, i1)
            for value, holds in known_later(self.loop).items()
        }
        values.update(zip([old[0], *kept], block.args, strict=False))
        rest, position = self.delayed.rest, self.delayed.position
        code.clone(rest[:position], values)
        earlier = self.carried_inputs(block.args[1 + len(kept) :])
        code.clone(self.delayed.ops, earlier)
        if self.delayed.total is not None:
            values[self.delayed.total] = earlier[self.delayed.dot.result]
        if self.addition:
            begin, position = position, self.delayed.addition_position
            code.clone(rest[begin:position], values)
            code.clone(self.addition, earlier)
        code.clone(rest[position:], values)
        code.builder.insert(scf.YieldOp(*(values.get(v, v) for v in self.carried())))
        return block

    @property
    def addition(self) -> Sequence[Operation]:
        """The delayed addition to memory, if there is one."""
        return () if self.delayed.addition is None else (self.delayed.addition,)

    def carried_inputs(self, carried: Sequence[SSAValue]) -> Values:
        """Return the previous iteration's values that the delayed ops use."""
        return dict(zip(self.delayed.inputs, carried, strict=True))


def announce(product: SSAValue, text: str) -> None:
    """Attach a comment to a product that names what begins there."""
    assert isinstance(product.owner, tile.DotOp)
    product.owner.attributes["comment"] = StringAttr(text)


@dataclass(frozen=True)
class TileDelayProductsPass(ModulePass):
    """Compute the last product of an iteration in the next iteration."""

    name = "tile-delay-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [o for o in op.walk() if isinstance(o, scf.ForOp)]:
            if (delayed := delayed_product(loop)) is not None:
                Delay(delayed).run()
