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

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.passes.analysis.later_iterations import known_later
from flexc.passes.delaying.tails import Tail, tail_of
from flexc.passes.scalar_code import ScalarCode

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
