"""What all parts of a block classifier write to, and what they know of the mask."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, Operation, SSAValue

from flexc.passes.masks.blocks.summaries import SummaryTable
from flexc.passes.masks.blocks.wide_integers import (
    Ends,
    Wide,
    WideCode,
)
from flexc.passes.scalar.canonicalization.region_simplifier import op_key
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.dependence import Along
from flexc.passes.scalar.ranges.linear_forms import (
    MODERATE,
    Linear,
    MaskFacts,
)
from flexc.passes.scalar.readable import spell
from flexc.passes.scalar.scalar_code import ScalarCode, new_region

POSITIONS = ("q_first", "q_last", "kv_first", "kv_last")


class SharingCode(ScalarCode):
    """Code in which no two ops are equal: parts of a formula say much twice."""

    def __init__(self, at: Block):
        super().__init__(at)
        self._seen: dict[object, Operation] = {}

    def insert(self, op: Operation, name: str | None = None) -> SSAValue:
        first = self._seen.setdefault(op_key(op), op)
        if first is op:
            return super().insert(op, name)
        op.drop_all_references()
        return first.results[0]


class BlockCode:
    """A region in which a block of pairs is classified."""

    def __init__(self, facts: MaskFacts):
        self.facts = facts
        mask = facts.region.block
        b, h, captures = mask.args[0], mask.args[1], mask.args[4:]
        types = [*[i32] * 6, *(c.type for c in captures)]
        names = ["b", "h", *POSITIONS, *(c.name_hint for c in captures)]
        self.region = new_region(types, names)
        args = self.region.block.args
        self.code = SharingCode(self.region.block)
        self.wide = WideCode(self.code)
        self.heads, self.positions = args[:2], args[2:6]
        self.copy = Copier(self.code, {b: args[0], h: args[1]})
        self.copy.known.update(zip(captures, args[6:], strict=True))
        self.summaries = SummaryTable(facts, self.region.block)
        self.unknown: dict[str, None] = {}

    def flag(self, value: bool) -> SSAValue:
        """true or false."""
        return self.code.const(-1 if value else 0, i1)

    def both(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.and_(a, b)

    def either(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.OrIOp(a, b))

    def inverse(self, a: SSAValue) -> SSAValue:
        """Not."""
        return self.code.insert(arith.XOrIOp(a, self.flag(True)))

    def all_of(self, flags: list[SSAValue]) -> SSAValue:
        """Whether all are true."""
        total = flags[0] if flags else self.flag(True)
        for flag in flags[1:]:
            total = self.both(total, flag)
        return total

    def any_of(self, flags: list[SSAValue]) -> SSAValue:
        """Whether some are true."""
        total = flags[0] if flags else self.flag(False)
        for flag in flags[1:]:
            total = self.either(total, flag)
        return total

    def block_ends(self, axis: Along) -> Ends:
        """The first and the last row (column) of the block."""
        known = self.facts.ranges[self.facts.index(axis)]
        ends = self.positions[:2] if axis == Along.ROW else self.positions[2:]
        return Ends(*(self.wide.extended(v, known) for v in ends))

    def uniform(self, form: Linear) -> Wide:
        """The value of a form that is one for all pairs."""
        facts, wide = self.facts, self.wide
        total: Wide | None = None
        # Saturation must come first: what is added later is too small to undo it.
        for value, factor in sorted(
            form.terms, key=lambda t: facts.ranges[t[0]].within(MODERATE)
        ):
            copied = wide.extended(self.copy.value(value), facts.ranges[value])
            term = wide.times(copied, factor)
            total = term if total is None else wide.add(total, term)
        if total is None:
            return wide.const(form.const)
        return wide.plus(total, form.const)

    def note(self, value: SSAValue, why: str) -> None:
        """Remember a value of which nothing is known."""
        line = f"{spell(value)}: {why}"
        self.unknown.setdefault(line)
