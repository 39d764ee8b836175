"""A loop over the blocks of columns of several query heads that share rows."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Block, SSAValue

from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(frozen=True)
class Heads:
    """The query heads, of one batch or more, for which one loop visits a segment."""

    b: SSAValue
    """The first batch."""
    h: SSAValue
    """The first head of each batch."""
    batches: SSAValue
    """The number of batches."""
    group: SSAValue
    """The number of heads of a batch."""

    def after(
        self, code: ScalarCode, b: SSAValue, h: SSAValue, is_last: SSAValue
    ) -> list[SSAValue]:
        """Return batch and head after an iteration, which may be the last of a head.

        The first head follows the last one.
        """
        is_over, next_h = next_in_cycle(code, h, self.h, self.group)
        _, next_b = next_in_cycle(code, b, self.b, self.batches)
        next_b = code.select(code.and_(is_last, is_over), next_b, b)
        return [next_b, code.select(is_last, next_h, h)]


def next_in_cycle(
    code: ScalarCode, value: SSAValue, first: SSAValue, count: SSAValue
) -> tuple[SSAValue, SSAValue]:
    """Return whether a value is the last of a cycle, and the value after it."""
    after = code.add(value, code.const(1))
    is_last = code.cmp("sge", after, code.add(first, count))
    return is_last, code.select(is_last, first, after)


@dataclass(frozen=True)
class HeadLoop:
    """The iterations of a loop over blocks `begin` to `end` of each head.

    If partial blocks are a head's first ones, the loop visits those of all heads before
    it visits full blocks, so that `tile-split-loops` can write two loops.
    """

    heads: Heads
    begin: SSAValue
    end: SSAValue
    partial_end: SSAValue | None
    """The end of a head's partial blocks; None if heads are visited one by one."""
    count: SSAValue
    """The number of all iterations."""
    partial_count: SSAValue
    """The number of iterations of the first pass over the heads."""

    @staticmethod
    def of(
        code: ScalarCode,
        heads: Heads,
        begin: SSAValue,
        end: SSAValue,
        partial_end: SSAValue | None,
    ) -> HeadLoop:
        """Write the numbers of iterations."""
        number = code.mul(heads.group, heads.batches)
        count = code.mul(code.sub(end, begin), number)
        if partial_end is None:
            return HeadLoop(heads, begin, end, None, count, count)
        partial_end = code.max(code.min(partial_end, end), begin)
        partial_count = code.mul(code.sub(partial_end, begin), number)
        return HeadLoop(heads, begin, end, partial_end, count, partial_count)

    def is_first_pass(self, code: ScalarCode, iteration: SSAValue) -> SSAValue:
        """Write the condition that an iteration visits partial blocks of all heads."""
        return code.cmp("slt", iteration, self.partial_count)

    def after(
        self,
        code: ScalarCode,
        iteration: SSAValue,
        b: SSAValue,
        h: SSAValue,
        i: SSAValue,
    ) -> list[SSAValue]:
        """Return batch, head and block of the iteration after the given one."""
        one = code.const(1)
        after = code.add(i, one)
        begin, end = self.begin, self.end
        if self.partial_end is not None:
            end = code.select(
                self.is_first_pass(code, iteration), self.partial_end, end
            )
            stays = self.is_first_pass(code, code.add(iteration, one))
            begin = code.select(stays, begin, self.partial_end)
        is_last = code.cmp("sge", after, end)
        place = self.heads.after(code, b, h, is_last)
        return [*place, code.select(is_last, begin, after)]


def end_of_first(
    condition: SSAValue | None, i: SSAValue, body: Block
) -> SSAValue | None:
    """Return m if a condition is `i < m`, for the block `i` that a loop visits.

    Return None for other conditions, and if m varies within the loop.
    """
    op = None if condition is None else condition.owner
    if not isinstance(op, arith.CmpiOp) or predicate_of(op) != "slt" or op.lhs is not i:
        return None
    return None if body.is_ancestor(op.rhs.owner) else op.rhs
