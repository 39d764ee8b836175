"""Define the region that classifies blocks, and the summaries that it reads.

A summary has the exact minimum and maximum over each block of rows of a value that
depends on rows alone, or likewise for columns. It costs one pass over the rows. Equal
summaries are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import AnyFloat, i1, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects.mod_region import yielded
from flexc.passes.masks.blocks.emitted_integers import (
    Ends,
    IntegerCode,
    SharingCode,
    Wide,
)
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.formula import AllOf, Formula
from flexc.passes.scalar.ranges.intervals import INDEX
from flexc.passes.scalar.readable import spell
from flexc.passes.scalar.scalar_code import ScalarCode, new_region
from flexc.passes.scalar.variation import NOTHING, SUMMABLE, Along, Linear, MaskFacts

MAX_RESTRICTED = 16
"""The number of summaries after which a new summary covers unused positions too."""


@dataclass(frozen=True)
class Summary:
    """The ends of a value over each block of rows or of columns.

    The region takes (b, h, position, *captures). It yields the value and a flag that
    the position is used. If no position is used, `lo` is the largest and `hi` the
    smallest number of the type. NaNs do not affect `lo` and `hi`; `nan` is true if
    there are any.
    """

    axis: Literal["row", "column"]
    region: Region
    along: Along
    """BATCH and HEAD, if the summary depends on them."""


Used = tuple[Formula, ...]
"""Formulas that all hold at the positions that take part."""


class SummaryTable:
    """A table of summaries. Each summary adds arguments to `block` for its results."""

    def __init__(self, facts: MaskFacts, block: Block):
        self.facts, self.block = facts, block
        self._found: dict[object, tuple[Summary, list[SSAValue]]] = {}

    def ends(self, axis: Along, what: Linear, used: Used) -> list[SSAValue]:
        """Return lo, hi and, for floats, a flag that there are NaNs.

        The ends may cover unused positions, if there are many summaries.
        """
        restricted = (axis, what, tuple(dict.fromkeys(used)))
        if restricted not in self._found and len(self._found) >= MAX_RESTRICTED:
            restricted = (axis, what, ())
        if restricted not in self._found:
            self._found[restricted] = self._add(*restricted)
        return self._found[restricted][1]

    def some_used(self, axis: Along, used: Used) -> list[SSAValue]:
        """Return the first and last used position, however many summaries there are."""
        key = (axis, Linear(((self.facts.index(axis), 1),)), tuple(dict.fromkeys(used)))
        if key not in self._found:
            self._found[key] = self._add(*key)
        return self._found[key][1]

    def _add(
        self, axis: Along, what: Linear, used: Used
    ) -> tuple[Summary, list[SSAValue]]:
        region, along = self._region(axis, what, used)
        type_ = yielded(region.block)[0].type
        types: list[Attribute] = [type_, type_]
        if isinstance(type_, AnyFloat):
            types.append(i1)
        name = "row" if axis == Along.ROW else "column"
        names = [f"{name}_lo", f"{name}_hi", f"{name}_nan"]
        args: list[SSAValue] = []
        for arg_type, hint in zip(types, names, strict=False):
            arg = self.block.insert_arg(arg_type, len(self.block.args))
            arg.name_hint = hint
            args.append(arg)
        side: Literal["row", "column"] = "row" if axis == Along.ROW else "column"
        return Summary(side, region, along), args

    def _region(self, axis: Along, what: Linear, used: Used) -> tuple[Region, Along]:
        mask, index = self.facts.region.block, self.facts.index(axis)
        b, h, captures = mask.args[0], mask.args[1], mask.args[4:]
        types = [i32, i32, i32, *(c.type for c in captures)]
        names = ["b", "h", index.name_hint, *(c.name_hint for c in captures)]
        region = new_region(types, names)
        args = region.block.args
        known = dict(zip((b, h, index, *captures), args, strict=True))
        copier = Copier(ScalarCode(region.block), known)
        value = copier.linear(what)
        copier.code.yield_(value, copier.formula(AllOf(used)))
        position = self.facts.ranges[index]
        simplify_region(region, {args[0]: INDEX, args[1]: INDEX, args[2]: position})
        return region, along_heads(args[0], args[1])

    def needed(self) -> list[Summary]:
        """Return the summaries that are used, and erase the arguments of the others."""
        kept: list[Summary] = []
        for summary, args in self._found.values():
            if any(arg.uses for arg in args):
                kept.append(summary)
                continue
            for arg in args:
                self.block.erase_arg(_block_argument(self.block, arg))
        return kept


def _block_argument(block: Block, value: SSAValue):
    return next(arg for arg in block.args if arg is value)


def along_heads(b: SSAValue, h: SSAValue, others: Sequence[Summary] = ()) -> Along:
    """Return BATCH and HEAD, if a region or a summary uses them."""
    along = NOTHING
    if b.uses:
        along |= Along.BATCH
    if h.uses:
        along |= Along.HEAD
    for summary in others:
        along |= summary.along
    return along


POSITIONS = ("q_first", "q_last", "kv_first", "kv_last")


class BlockCode:
    """A region that classifies a block of pairs, and the builders of its code."""

    def __init__(self, facts: MaskFacts):
        self.facts = facts
        mask = facts.region.block
        b, h, captures = mask.args[0], mask.args[1], mask.args[4:]
        types = [*[i32] * 6, *(c.type for c in captures)]
        names = ["b", "h", *POSITIONS, *(c.name_hint for c in captures)]
        self.region = new_region(types, names)
        args = self.region.block.args
        self.code = SharingCode(self.region.block)
        self.integers = IntegerCode(self.code)
        self.heads, self.positions = args[:2], args[2:6]
        self.copy = Copier(self.code, {b: args[0], h: args[1]})
        self.copy.known.update(zip(captures, args[6:], strict=True))
        self.summaries = SummaryTable(facts, self.region.block)
        self.unknown: dict[str, None] = {}

    def block_ends(self, axis: Along) -> Ends:
        """Return the first and the last row (column) of the block."""
        known = self.facts.ranges[self.facts.index(axis)]
        ends = self.positions[:2] if axis == Along.ROW else self.positions[2:]
        return Ends(*(self.integers.extended(v, known) for v in ends))

    def uniform(self, form: Linear) -> Wide:
        """Return the value of a form that is the same for all pairs."""
        facts, wide = self.facts, self.integers
        total: Wide | None = None
        rest = form.const
        # Add large values first: later addends are too small to undo a saturation. The
        # smallest number has no negative: subtract it from a number of its own.
        terms = sorted(
            form.terms, key=lambda t: (facts.ranges[t[0]].within(SUMMABLE), -t[1])
        )
        for value, factor in terms:
            copied = wide.extended(self.copy.value(value), facts.ranges[value])
            if factor == -1:
                if total is None:
                    total, rest = wide.const(rest), 0
                total = wide.sub(total, copied)
            else:
                term = wide.times(copied, factor)
                total = term if total is None else wide.add(total, term)
        return wide.const(rest) if total is None else wide.plus(total, rest)

    def note(self, value: SSAValue, why: str) -> None:
        """Record a value without known bounds, and the reason, for the user."""
        line = f"{spell(value)}: {why}"
        self.unknown.setdefault(line)
