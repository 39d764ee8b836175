"""Minima and maxima over blocks of rows or of columns, asked for by their region.

A mask's value that depends on rows alone has exact ends over each block of rows,
which cost one pass over the rows. Equal ones are asked for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import AnyFloat, i1, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.passes.scalar.canonicalization.region_simplifier import simplify_region
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.dependence import NOTHING, Along
from flexc.passes.scalar.formula import (
    AllOf,
    Formula,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.linear_forms import Linear, MaskFacts
from flexc.passes.scalar.scalar_code import ScalarCode, new_region

MAX_RESTRICTED = 16
"""After that many summaries, those of some rows only give way to those of all."""

HEADS = Interval(0, (1 << 31) - 2)


@dataclass(frozen=True)
class Summary:
    """The ends of a value over each block of rows or of columns.

    The region takes (b, h, position, *captures) and yields the value and whether
    the position is used. Without used positions, `lo` is the largest and `hi` the
    smallest number of the type. NaNs are in neither: `nan` says that there are any.
    """

    axis: Literal["row", "column"]
    region: Region
    along: Along
    """BATCH and HEAD, as it depends on them."""


Used = tuple[Formula, ...]
"""Formulas of which all hold at the positions that take part."""


class SummaryTable:
    """Summaries by what they are of; `block` gets arguments for what they yield."""

    def __init__(self, facts: MaskFacts, block: Block):
        self.facts, self.block = facts, block
        self._found: dict[object, tuple[Summary, list[SSAValue]]] = {}

    def ends(self, axis: Along, what: Linear, used: Used) -> list[SSAValue]:
        """lo, hi and, of floats, whether there is a NaN."""
        restricted = (axis, what, tuple(dict.fromkeys(used)))
        if restricted not in self._found and len(self._found) >= MAX_RESTRICTED:
            restricted = (axis, what, ())
        if restricted not in self._found:
            self._found[restricted] = self._add(*restricted)
        return self._found[restricted][1]

    def some_used(self, axis: Along, used: Used) -> list[SSAValue]:
        """The first and the last used position; never of more than those."""
        key = (axis, Linear(((self.facts.index(axis), 1),)), tuple(dict.fromkeys(used)))
        if key not in self._found:
            self._found[key] = self._add(*key)
        return self._found[key][1]

    def _add(
        self, axis: Along, what: Linear, used: Used
    ) -> tuple[Summary, list[SSAValue]]:
        region, along = self._region(axis, what, used)
        last = region.block.last_op
        assert last is not None
        type_ = last.operands[0].type
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
        simplify_region(region, {args[0]: HEADS, args[1]: HEADS, args[2]: position})
        return region, along_heads(args[0], args[1])

    def needed(self) -> list[Summary]:
        """Summaries of which something is used; forgets the others' arguments."""
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
    """Whether a region uses its batch and its head."""
    along = NOTHING
    if b.uses:
        along |= Along.BATCH
    if h.uses:
        along |= Along.HEAD
    for summary in others:
        along |= summary.along
    return along
