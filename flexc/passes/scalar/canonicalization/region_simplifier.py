"""Apply the rules to one region until no rule applies.

A round visits the ops in order, so operands are simplified before their users. For each
op, the rules are tried until one replaces the op. An op that no rule replaces is merged
with an equal earlier op. Unused ops are erased at the end of a round. The next round
also visits the ops that the last round wrote. Every rule makes the code simpler. The
limit on rounds is a safeguard against rules that undo each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from flexc.passes.scalar.canonicalization import RULES
from flexc.passes.scalar.canonicalization.site import Site, is_integer
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode

MAX_ROUNDS = 64

COMMUTATIVE = (
    arith.AddiOp,
    arith.MuliOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.MinSIOp,
    arith.MaxSIOp,
    arith.AddfOp,
    arith.MulfOp,
)


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


def op_key(op: Operation, operands: Iterable[SSAValue] | None = None) -> object:
    """Return a key that is equal for ops that compute the same value.

    `operands` replace the op's own, if given.
    """
    operands = list(op.operands if operands is None else operands)
    if isinstance(op, COMMUTATIVE):
        operands.sort(key=id)
    return (
        type(op),
        tuple(operands),
        tuple(op.result_types),
        frozenset(op.properties.items()),
        frozenset(op.attributes.items()),
    )


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
