"""Simplify scalar code. There is one module of rules per family of ops.

A rule takes an op and its site. It returns the value that replaces the op, or None. All
rules are exact: the new value has the bits of the replaced one, where all NaNs count as
equal. Tables map ops to rules, which are tried in order.

A round visits the ops of a region in order, so operands are simplified before their
users. For each op, the rules are tried until one replaces the op. An op that no rule
replaces is merged with an equal earlier op. Unused ops are erased at the end of a
round. The next round also visits the ops that the last round wrote. Every rule makes
the code simpler. The limit on rounds is a safeguard against rules that undo each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from flexc.passes.scalar.canonicalization import (
    boolean_rules,
    constant_rules,
    float_rules,
    integer_rules,
)
from flexc.passes.scalar.canonicalization.site import Rule, Site, is_integer
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode, op_key

TABLES: tuple[Mapping[type[Operation], tuple[Rule, ...]], ...] = (
    constant_rules.RULES,
    integer_rules.RULES,
    boolean_rules.RULES,
    float_rules.RULES,
)

RULES: dict[type[Operation], tuple[Rule, ...]] = {
    op: tuple(chain.from_iterable(table.get(op, ()) for table in TABLES))
    for op in dict.fromkeys(chain.from_iterable(TABLES))
}

MAX_ROUNDS = 64


def simplify_region(region: Region, known: Mapping[SSAValue, Interval]) -> None:
    """Simplify a region of scalar code, given ranges of its arguments."""
    for _ in range(MAX_ROUNDS):
        if not _Round(region.block, known).run():
            return


def is_unused(op: Operation) -> bool:
    """Return True if no op uses the op's results. Scalar code has no side effects.

    xDSL's own test would keep some unused ops, because not all of them are declared
    pure.
    """
    return not op.has_trait(IsTerminator) and not any(r.uses for r in op.results)


class _Round:
    """One walk over the ops of a block."""

    def __init__(self, block: Block, known: Mapping[SSAValue, Interval]):
        self.block = block
        self.ranges = ValueRanges(known)
        self.seen: dict[object, Operation] = {}

    def run(self) -> bool:
        """Visit all ops, and return True if anything changed."""
        changed = False
        for op in list(self.block.ops):
            if not op.has_trait(IsTerminator) and not is_unused(op):
                changed |= self.visit(op)
        return self.erase_unused() or changed

    def visit(self, op: Operation) -> bool:
        value = self.simplified(op) or self.merged(op)
        if value is None:
            return False
        if value.name_hint is None and not isinstance(
            value.owner, Block | arith.ConstantOp
        ):
            value.name_hint = op.results[0].name_hint
        Rewriter.replace_op(op, [], [value])
        return True

    def simplified(self, op: Operation) -> SSAValue | None:
        """Return the value that a rule replaces an op by, or None."""
        before = op.prev_op
        site = Site(ScalarCode(InsertPoint.before(op)), self.ranges)
        value = self.constant(op, site)
        for rule in RULES.get(type(op), ()):
            if value is not None:
                break
            value = rule(op, site)
        first = self.block.first_op if before is None else before.next_op
        while first is not None and first is not op:
            first.location = op.location
            first = first.next_op
        return value

    def constant(self, op: Operation, site: Site) -> SSAValue | None:
        """Return a constant if an integer result can only have one value."""
        if isinstance(op, arith.ConstantOp) or len(op.results) != 1:
            return None
        result = op.results[0]
        if not is_integer(result.type):
            return None
        value = self.ranges[result].constant
        return None if value is None else site.const(value, result.type)

    def merged(self, op: Operation) -> SSAValue | None:
        """Return the result of an earlier op that equals this one, or None."""
        if op.regions or len(op.results) != 1:
            return None
        first = self.seen.setdefault(op_key(op), op)
        return None if first is op else first.results[0]

    def erase_unused(self) -> bool:
        dead = 0
        for op in reversed(list(self.block.ops)):
            if is_unused(op):
                Rewriter.erase_op(op)
                dead += 1
        return dead > 0
