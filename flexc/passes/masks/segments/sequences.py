"""Regions of packed sequences: relative to a sequence, and placed at its positions.

The positions of a packed op count from the first sequence on. Its regions find the
sequence of each position in captured tensors, which the fact `sequences` names (see
`PairsOp`). A *relative* region is the same code as a function of a sequence's number,
as b, and of positions within it: masks have their bounds in closed form there. A
*placed* region finds the sequence by the row, so nothing is read by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.ranges.intervals import INDEX
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region, region_like


@dataclass(frozen=True)
class PackedSequences:
    """The numbers of the captures that place sequences, for rows and columns."""

    of_row: int
    of_column: int
    row_starts: int
    column_starts: int
    transposed: bool = False
    """True if rows are keys, and columns queries."""

    @classmethod
    def of(cls, op: flex.PairsOp, transposed: bool = False) -> PackedSequences | None:
        """Return the sequences of an op, None if it has none."""
        if op.sequences is None:
            return None
        query, key, queries, keys = op.sequences.get_values()
        if transposed:
            return cls(key, query, keys, queries, True)
        return cls(query, key, queries, keys)

    @property
    def is_self(self) -> bool:
        """True if rows and columns have the same positions."""
        return self.of_row == self.of_column

    def relative(self, region: Region, first: int = 0) -> Region:
        """Return a region as a function of a sequence and of positions within it.

        `first` is the index of b among the region's arguments.
        """
        args = region.block.args
        made = region_like(region)
        code = ScalarCode(made.block)
        captures = args[first + len(INDEX_ARGS) :]
        numbers = {captures[self.of_row], captures[self.of_column]}
        starts = {captures[self.row_starts], captures[self.column_starts]}
        known: dict[SSAValue, SSAValue] = dict(zip(args, made.block.args, strict=True))
        for op in region.block.ops:
            if isinstance(op, flex.LoadCaptureOp) and op.tensor in numbers:
                known[op.result] = made.block.args[first]
            elif isinstance(op, flex.LoadCaptureOp) and op.tensor in starts:
                known[op.result] = code.const(0)
            else:
                code.builder.insert(op.clone(known))
        indices = made.block.args[first : first + len(INDEX_ARGS)]
        simplify_region(made, dict.fromkeys(indices, INDEX))
        return made

    def placed(
        self, region: Region, first: int = 0, begin: bool = False, end: bool = False
    ) -> Region:
        """Return a region that finds the sequence of a pair by its row.

        If the region is a mask, `begin` and `end` make columns dead that are before the
        sequence's begin, or from its end on.
        """
        made = region_like(region)
        given: list[SSAValue] = list(made.block.args)
        code = ScalarCode(made.block)
        at = first + 2, first + 3
        row, column = (given[i] for i in (reversed(at) if self.transposed else at))
        captures = given[first + len(INDEX_ARGS) :]
        here = Place.of_row(code, self, row, captures)
        own = [code.sub(row, here.row_start), code.sub(column, here.column_start)]
        given[first] = here.number
        given[at[0]], given[at[1]] = reversed(own) if self.transposed else own
        found = inline_region(self.relative(region, first), given, code)
        if self.is_self:
            for op in made.block.ops:
                if isinstance(op, arith.CmpiOp | arith.SubiOp):
                    compare_packed(op, {own[0]: row, own[1]: column})
        tests = [("sge", here.column_start)] * begin + [("slt", here.column_end)] * end
        for predicate, limit in tests:
            inside = code.cmp(predicate, column, limit)
            found = [code.and_(inside, value) for value in found]
        code.yield_(*found)
        return made


def load(code: ScalarCode, tensor: SSAValue, index: SSAValue, name: str) -> SSAValue:
    """Write a read of a captured tensor, at an index that is in range."""
    return code.insert(flex.LoadCaptureOp(tensor, [index], inside=True), name)


def compare_packed(op: Operation, packed: dict[SSAValue, SSAValue]) -> None:
    """Let an op of two positions in a sequence read the packed positions instead.

    Differences of positions are the same, and need not be computed for each pair.
    """
    if {*op.operands} == packed.keys():
        op.operands = [packed[value] for value in op.operands]


@dataclass(frozen=True)
class Place:
    """A sequence, and where its rows and columns begin and end."""

    number: SSAValue
    row_start: SSAValue
    row_end: SSAValue
    column_start: SSAValue
    column_end: SSAValue

    @classmethod
    def of_row(
        cls,
        code: ScalarCode,
        packed: PackedSequences,
        row: SSAValue,
        captures: Sequence[SSAValue],
    ) -> Place:
        """Write the sequence that a row belongs to."""
        number = load(code, captures[packed.of_row], row, "sequence")
        return cls.of(code, packed, number, captures)

    @classmethod
    def of(
        cls,
        code: ScalarCode,
        packed: PackedSequences,
        number: SSAValue,
        captures: Sequence[SSAValue],
    ) -> Place:
        """Write the sequence of a number."""
        row_name, column_name = ("kv", "q") if packed.transposed else ("q", "kv")
        after = code.add(number, code.const(1))
        rows, columns = captures[packed.row_starts], captures[packed.column_starts]
        return cls(
            number,
            load(code, rows, number, f"{row_name}_begin"),
            load(code, rows, after, f"{row_name}_end"),
            load(code, columns, number, f"{column_name}_begin"),
            load(code, columns, after, f"{column_name}_end"),
        )
