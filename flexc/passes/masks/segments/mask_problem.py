"""Define the input of segments: a mask, and the choice of its axes as rows and columns.

A program owns a block of rows and loops over blocks of columns. By default, rows are
queries and columns are keys. If `transposed`, rows are keys and columns are queries.
The mask is then solved with its two positions exchanged, so that the code that finds
and writes bounds deals with rows and columns only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.builtin import i32
from xdsl.ir import BlockArgument, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.blocksparse import SegmentKind
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import INDEX_ARGS, yielded
from flexc.passes.masks.bounds.facts import Facts
from flexc.passes.masks.bounds.key_ranges import KeyRanges, for_blocks, key_ranges
from flexc.passes.masks.bounds.terms import Constant, RowValue, Sum, Term
from flexc.passes.masks.segments.sequences import PackedSequences
from flexc.passes.scalar import Proof, Proven
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region, new_region

Q_IDX, KV_IDX = 2, 3
"""The argument numbers of a mask's positions."""

AXES = ("q", "kv")


@dataclass(frozen=True, eq=False)
class MaskProblem:
    """The properties of an op that its segments depend on.

    `tables` list the partial blocks of columns of each block of rows: their counts and
    their indices. If there are four tables, the last two list the full blocks in the
    same way.
    """

    mask: Region
    """The mask as a function of (b, h, q_idx, kv_idx) and the captures."""
    captures: tuple[SSAValue, ...] = ()
    tables: tuple[SSAValue, ...] = ()
    sparse_block: tuple[int, int] | None = None
    """The numbers of rows and columns of a block of the tables."""
    row_multiple: int = 1
    """A number that is known to divide the number of rows."""
    column_multiple: int = 1
    max_length: int = full(32).hi
    """An upper limit of both lengths."""
    indices_fit: bool = False
    """True if no arithmetic on positions overflows its type."""
    transposed: bool = False
    """True if rows are keys, and columns queries."""
    packed: PackedSequences | None = None
    """The sequences that rows and columns belong to."""

    @classmethod
    def of(
        cls, op: flex.AttentionOp | flex.PairSumsOp, transposed: bool | None = None
    ) -> MaskProblem:
        """Return the problem of an op, by default with the op's rows.

        If rows and columns are exchanged, the problem has no tables: the op's tables
        list columns for its own rows.
        """
        own = isinstance(op, flex.PairSumsOp) and op.is_transposed
        transposed = own if transposed is None else transposed
        multiples = op.fact("q_len_multiple"), op.fact("kv_len_multiple")
        row_multiple, column_multiple = multiples[::-1] if transposed else multiples
        return cls(
            op.mask_mod,
            tuple(op.captures),
            tuple(op.tables) if transposed == own else (),
            sparse_block(op) if transposed == own else None,
            row_multiple,
            column_multiple,
            op.fact("max_length", full(32).hi),
            op.indices_fit is not None,
            transposed,
            PackedSequences.of(op, transposed),
        )

    def in_sequence(self) -> MaskProblem:
        """Return the problem of one of the packed sequences, whatever its number."""
        assert self.packed is not None
        mask = self.packed.relative(self.mask)
        return replace(self, mask=mask, packed=None, row_multiple=1, column_multiple=1)

    @property
    def has_mask(self) -> bool:
        return not is_always_true(self.mask)

    @cached_property
    def tested(self) -> Region:
        """The mask that is evaluated for pairs of partial blocks."""
        if self.packed is None:
            return self.mask
        above = below = False
        if self.packed.is_self and isinstance(self.solution, Proven):
            # A mask such as `q_idx >= kv_idx` implies a test of the sequence.
            live = self.solution.value.live
            above = all(any(is_beyond(e.term, 1) for e in r.lows) for r in live)
            below = all(any(is_beyond(e.term, -1) for e in r.highs) for r in live)
        return self.packed.placed(self.mask, begin=not above, end=not below)

    def mask_of(self, kind: SegmentKind) -> Region | None:
        """Return a copy of the mask that blocks of a kind test, or None."""
        tests = self.has_mask or self.packed is not None
        return self.tested.clone() if tests and kind != SegmentKind.FULL else None

    @cached_property
    def solved(self) -> Region:
        """The mask as a function of (b, h, row, column) and the captures.

        If sequences are packed, b is a sequence, and positions are those within it.
        """
        mask = self.packed.relative(self.mask) if self.packed else self.mask
        return with_positions_exchanged(mask) if self.transposed else mask

    @cached_property
    def facts(self) -> Facts:
        """The facts about the values of `solved`."""
        return Facts(self.solved, self.max_length, self.indices_fit)

    def ranges(self, block_m: int, block_n: int) -> Proof[KeyRanges]:
        """Return the ranges of columns of the mask, or the reason why there are none.

        The ranges refer to values of `solved`.
        """
        return for_blocks(self.solution, block_m, block_n)

    @cached_property
    def solution(self) -> Proof[KeyRanges]:
        """The ranges for blocks in which all remainders vary."""
        return key_ranges(self.facts)

    @property
    def axes(self) -> tuple[str, str]:
        """The prefixes of the names of rows and of columns."""
        row, column = AXES[::-1] if self.transposed else AXES
        return row, column

    def bounds_region(self) -> Region:
        """Return an empty region for a segment's bounds.

        The region's arguments are b, h, the first row, the number of rows, the number
        of columns, the captures and the tables.
        """
        row, column = self.axes
        return self._region("b", "h", f"{row}_start", f"{row}_len", f"{column}_len")

    def block_region(self) -> Region:
        """Return an empty region for a segment's block.

        The region's arguments are those of `bounds_region`, with the iteration after
        the first row.
        """
        row, column = self.axes
        return self._region(
            "b", "h", f"{row}_start", "i", f"{row}_len", f"{column}_len"
        )

    def _region(self, *names: str) -> Region:
        trailing = [*self.captures, *self.tables]
        types = [*([i32] * len(names)), *(v.type for v in trailing)]
        return new_region(types, [*names, *(v.name_hint for v in trailing)])


def sparse_block(op: flex.AttentionOp | flex.PairSumsOp) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of a block of an op's tables, if any."""
    if op.sparse_block is None:
        return None
    block_m, block_n = op.sparse_block.get_values()
    return block_m, block_n


def is_always_true(mask: Region) -> bool:
    """Return True if a mask region yields the constant true."""
    return bool(int_constant(yielded(mask.block)[0]))


def with_positions_exchanged(mask: Region) -> Region:
    """Return the same mask as a function of (b, h, kv_idx, q_idx) and the captures."""
    args = mask.block.args
    order = list(range(len(args)))
    order[Q_IDX], order[KV_IDX] = KV_IDX, Q_IDX
    exchanged = new_region(
        [*INDEX_ARGS, *(a.type for a in args[len(INDEX_ARGS) :])],
        [args[i].name_hint for i in order],
    )
    code = ScalarCode(exchanged.block)
    found = inline_region(mask, [exchanged.block.args[i] for i in order], code)
    code.yield_(*found)
    return exchanged


def is_beyond(term: Term, side: int) -> bool:
    """Return True if a term is the row itself, or beyond it to one side."""
    match term:
        case Sum(row, Constant(plus)):
            return plus * side >= 0 and is_beyond(row, side)
        case RowValue():
            return isinstance(term.value, BlockArgument)
        case _:
            return False
