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
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.passes.scalar_code import ScalarCode

Values = dict[SSAValue, SSAValue]


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
        """The product and its own loads and transposes, in program order."""
        found: set[Operation] = {self.dot}
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
        rhs = self.dot.rhs
        return self.place > 0 and (rhs not in self.inputs or not self.varies(rhs))


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
        before.builder.insert(loop)
        kept = list(loop.results[: len(self.kept)])
        carried = loop.results[len(self.kept) :]
        total = self.tail_code(before, carried)
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
        values: Values = dict(zip([old[0], *kept], block.args, strict=False))
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
