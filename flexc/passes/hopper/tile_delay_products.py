"""`tile-delay-products`: what ends an iteration is done in the next one.

A loop's last matrix product waits for all that the iteration computes, and nothing in
the iteration waits for it. Done one iteration later it is issued beside the first
product, and what lies between the two in program order overlaps with it:

    s = q @ k[0];  p, a = f(s, 0)        the first iteration, without its product
    for i from 1:
      s = q @ k[i]
      o = p @ v[i - 1] + a
      p, a = f(s, o)
    o = p @ v[n - 1] + a

In place of its result the loop carries what the product is made from, of the iteration
before: tiles, and the indices of what is loaded for nothing else. That takes a loop
that runs once at least, as `nonempty` says; others are left alone.
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
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.scalar.steps import constant

# The product that ends an iteration, which only the next one waits for.


@dataclass(frozen=True, eq=False)
class Tail:
    """A product that only the next iteration waits for, and what is loaded for it."""

    loop: scf.ForOp
    dot: tile.DotOp
    number: int
    """Of the loop's results, the one that the product is."""

    @property
    def block(self) -> Block:
        return self.loop.body.block

    @cached_property
    def ops(self) -> list[Operation]:
        """The product and its own loads and transposes, in program order.

        And what is done to the sum that it adds to: beside another product.
        """
        found: set[Operation] = {self.dot, *self.work_on_sum()}
        grown = True
        while grown:
            new = {
                o.owner
                for op in found
                for o in op.operands
                if isinstance(o.owner, tile.LoadOp | tile.TransposeOp)
                and o.owner.parent is self.block
                and all(use.operation in found for use in o.uses)
            }
            grown = not new <= found
            found |= new
        return [op for op in self.block.ops if op in found]

    def work_on_sum(self) -> list[Operation]:
        """The map between the sum that is carried and the product, if it is delayed.

        An H100 runs attention without a mask 1 to 3 % faster for it, and where a branch
        applies one up to 2 % slower.
        """
        owner, total = self.dot.acc.owner, self.block.args[1 + self.number]
        if not isinstance(owner, tile.MapOp) or owner.parent is not self.block:
            return []
        if not self.dot.acc.has_one_use() or total not in owner.operands:
            return []
        branches = any(isinstance(op, scf.IfOp) for op in self.block.ops)
        return [] if branches else [owner]

    @cached_property
    def rest(self) -> list[Operation]:
        """What else an iteration does, but for its end."""
        return [
            op
            for op in self.block.ops
            if op not in self.ops and not isinstance(op, scf.YieldOp)
        ]

    @cached_property
    def inputs(self) -> list[SSAValue]:
        """What the product and its loads take from an iteration."""
        own = {result for op in self.ops for result in op.results}
        operands = (v for op in self.ops for v in op.operands)
        return [v for v in dict.fromkeys(operands) if v not in own and self.varies(v)]

    def varies(self, value: SSAValue) -> bool:
        """Whether a value is an iteration's own."""
        if isinstance(value, BlockArgument):
            return value.block is self.block
        return isinstance(value.owner, Operation) and value.owner.parent is self.block

    @cached_property
    def place(self) -> int:
        """How many of `rest` come before the product of the iteration before.

        It follows the last product that has no need of it. 0 if there is none.
        """
        total = self.block.args[1 + self.number]
        before = 0
        for count, op in enumerate(self.rest):
            if any(total in inner.operands for inner in op.walk()):
                break
            if isinstance(op, tile.DotOp):
                before = count + 1
        return before

    @property
    def is_worth_it(self) -> bool:
        """Whether its rhs comes from memory, and another product overlaps with it."""
        return self.place > 0 and self.dot.rhs not in self.inputs


def tail_of(loop: scf.ForOp) -> Tail | None:
    """What may be done an iteration later, if the loop has such a thing."""
    block = loop.body.block
    last = block.last_op
    if "nonempty" not in loop.attributes or not isinstance(last, scf.YieldOp):
        return None
    dots = [op for op in block.ops if isinstance(op, tile.DotOp)]
    for dot in reversed(dots):
        uses = list(dot.result.uses)
        if len(uses) == 1 and uses[0].operation is last:
            tail = Tail(loop, dot, uses[0].index)
            return tail if tail.is_worth_it else None
    return None


# What is known in all iterations of a loop but the first.


LESS = 2
"""The number of arith.cmpi's signed comparison `slt`."""


def known_later(loop: scf.ForOp) -> dict[SSAValue, bool]:
    """Conditions from outside of a loop that are settled after its first iteration.

    A loop from begin to max(end, begin + 1) has a second one only if begin < end.
    """
    bound = loop.ub.owner
    if not isinstance(bound, arith.MaxSIOp) or constant(loop.step) != 1:
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
    first, second = constant(begin), constant(value)
    return first is not None and second == first + 1


def _is_below(op: Operation, begin: SSAValue, end: SSAValue) -> bool:
    """Whether an op tests if a constant begin is below an end."""
    return (
        isinstance(op, arith.CmpiOp)
        and op.predicate.value.data == LESS
        and constant(op.lhs) == constant(begin)
        and op.rhs is end
    )


def _with_negations(test: SSAValue) -> dict[SSAValue, bool]:
    """A condition that holds, and what says that it does not."""
    found = {test: True}
    for use in test.uses:
        op = use.operation
        if isinstance(op, arith.XOrIOp):
            other = op.rhs if op.lhs is test else op.lhs
            if constant(other) is not None and other.type == i1:
                found[op.result] = not constant(other)
    return found


Values = dict[SSAValue, SSAValue]


class Delay:
    """Rewrites one loop."""

    def __init__(self, tail: Tail):
        self.tail = tail
        self.loop = tail.loop
        self.block = tail.block
        last = self.block.last_op
        assert last is not None
        self.kept = [i for i in range(len(last.operands)) if i != tail.number]
        self.yielded = list(last.operands)

    def run(self) -> None:
        """Peel the first iteration, delay the tail, and do it once more at the end."""
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
        kept = list(loop.results[: len(self.kept)])
        carried = loop.results[len(self.kept) :]
        total = self.tail_code(before, carried)
        announce(total, "the last block's values")
        results = [*kept[: self.tail.number], total, *kept[self.tail.number :]]
        for new, old in zip(loop.results, self.carried(), strict=True):
            new.name_hint = old.name_hint
        Rewriter.replace_op(self.loop, [], results)

    def carried(self) -> list[SSAValue]:
        """What an iteration leaves to the next."""
        return [*(self.yielded[i] for i in self.kept), *self.tail.inputs]

    def peeled(self, code: ScalarCode) -> list[SSAValue]:
        """The first iteration without its tail; what it leaves."""
        inits = [self.loop.lb, *self.loop.iter_args]
        values: Values = dict(zip(self.block.args, inits, strict=True))
        clone_into(code, self.tail.rest, values)
        first = next(o for o in self.tail.rest if isinstance(o, tile.DotOp))
        announce(values[first.result], "the first block")
        return [values.get(v, v) for v in self.carried()]

    def body(self) -> Block:
        """An iteration that begins with the tail of the one before."""
        old = self.block.args
        kept = [old[1 + i] for i in self.kept]
        types = [v.type for v in (old[0], *kept, *self.tail.inputs)]
        block = Block(arg_types=types)
        names = [v.name_hint for v in (old[0], *kept, *self.tail.inputs)]
        for arg, name in zip(block.args, names, strict=True):
            arg.name_hint = name
        code = ScalarCode(block)
        values: Values = {
            value: code.const(holds, i1)
            for value, holds in known_later(self.loop).items()
        }
        values.update(zip([old[0], *kept], block.args, strict=False))
        rest, place = self.tail.rest, self.tail.place
        clone_into(code, rest[:place], values)
        carried = block.args[1 + len(kept) :]
        values[old[1 + self.tail.number]] = self.tail_code(code, carried)
        clone_into(code, rest[place:], values)
        code.builder.insert(scf.YieldOp(*(values.get(v, v) for v in self.carried())))
        return block

    def tail_code(self, code: ScalarCode, carried: Sequence[SSAValue]) -> SSAValue:
        """The tail of an iteration that left these; its product."""
        values: Values = dict(zip(self.tail.inputs, carried, strict=True))
        clone_into(code, self.tail.ops, values)
        return values[self.tail.dot.result]


def announce(product: SSAValue, text: str) -> None:
    """Say of a product, in a comment, what begins with it."""
    assert isinstance(product.owner, tile.DotOp)
    product.owner.attributes["comment"] = StringAttr(text)


def clone_into(code: ScalarCode, ops: Sequence[Operation], values: Values) -> None:
    """Append clones of ops, of mapped operands; `values` then maps their results."""
    for op in ops:
        clone = op.clone(values)
        clone.location = op.location
        code.builder.insert(clone)


@dataclass(frozen=True)
class TileDelayProductsPass(ModulePass):
    """Do the last product of an iteration in the next one."""

    name = "tile-delay-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [o for o in op.walk() if isinstance(o, scf.ForOp)]:
            if (tail := tail_of(loop)) is not None:
                Delay(tail).run()
