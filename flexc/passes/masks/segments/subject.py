"""What segments are built for: a mask, and which of its two axes the rows are.

A program owns a block of rows and loops over blocks of columns. Rows are queries and
columns keys; where an op is `transposed` rows are keys and columns queries. Its mask is
then solved with its two positions exchanged, so that all that finds and writes bounds
knows rows and columns only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.masks.bounds.affine import Facts
from flexc.passes.masks.bounds.key_ranges import KeyRanges, key_ranges
from flexc.passes.scalar.proof import Proof
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import (
    ScalarCode,
    inline_region,
    new_region,
)

Q_IDX, KV_IDX = 2, 3
"""Where a mask receives its positions."""

AXES = ("q", "kv")


@dataclass(frozen=True, eq=False)
class SegmentSubject:
    """What segments depend on, of whichever op they are for.

    `tables` list, for each block of rows, counts and indices of partial and, where
    there are four, of full blocks of columns.
    """

    mask: Region
    """In terms of (b, h, q_idx, kv_idx) and the captures."""
    captures: tuple[SSAValue, ...] = ()
    tables: tuple[SSAValue, ...] = ()
    sparse_block: tuple[int, int] | None = None
    """Rows and columns of a block of the tables."""
    row_multiple: int = 1
    """The number of rows is known to be a multiple of this."""
    column_multiple: int = 1
    max_length: int = full(32).hi
    """Both lengths are known to be at most this."""
    indices_fit: bool = False
    """No arithmetic on positions overflows its type."""
    transposed: bool = False
    """Rows are keys, and columns queries."""

    _ranges: dict[tuple[int, int], Proof[KeyRanges]] = field(
        default_factory=dict[tuple[int, int], Proof[KeyRanges]], repr=False
    )

    @classmethod
    def of(cls, op: flex.AttentionOp, transposed: bool = False) -> SegmentSubject:
        """An attention op; transposed, its pairs as keys see them, without tables.

        The tables of an op list columns for its rows, and say nothing of others.
        """
        multiples = op.fact("q_len_multiple"), op.fact("kv_len_multiple")
        row_multiple, column_multiple = multiples[::-1] if transposed else multiples
        sparse = None
        if op.sparse_block is not None and not transposed:
            sparse_m, sparse_n = op.sparse_block.get_values()
            sparse = sparse_m, sparse_n
        return cls(
            op.mask_mod,
            tuple(op.captures),
            () if transposed else tuple(op.tables),
            sparse,
            row_multiple,
            column_multiple,
            op.fact("max_length", full(32).hi),
            op.indices_fit is not None,
            transposed,
        )

    @classmethod
    def of_sums(cls, op: flex.PairSumsOp) -> SegmentSubject:
        """Sums over pairs, whose tables list columns for its own rows."""
        sparse = None
        if op.sparse_block is not None:
            sparse_m, sparse_n = op.sparse_block.get_values()
            sparse = sparse_m, sparse_n
        return cls(
            op.mask_mod,
            tuple(op.captures),
            tuple(op.tables),
            sparse,
            op.length_multiple(of_rows=True),
            op.length_multiple(of_rows=False),
            op.fact("max_length", full(32).hi),
            op.indices_fit is not None,
            op.is_transposed,
        )

    @property
    def has_mask(self) -> bool:
        return not is_always_true(self.mask)

    @cached_property
    def solved(self) -> Region:
        """The mask as a function of (b, h, row, column) and the captures."""
        return with_positions_exchanged(self.mask) if self.transposed else self.mask

    @cached_property
    def facts(self) -> Facts:
        """What is known of the values of `solved`."""
        return Facts(self.solved, self.max_length, self.indices_fit)

    def ranges(self, block_m: int, block_n: int) -> Proof[KeyRanges]:
        """The ranges of columns of the mask, in the values of `solved`.

        Or why there are none. They are found once.
        """
        size = block_m, block_n
        if size not in self._ranges:
            self._ranges[size] = key_ranges(
                self.solved, self.max_length, self.indices_fit, *size
            )
        return self._ranges[size]

    @property
    def axes(self) -> tuple[str, str]:
        """What names of rows and of columns start with."""
        row, column = AXES[::-1] if self.transposed else AXES
        return row, column

    def bounds_region(self) -> Region:
        """An empty region for a segment's bounds: which row, and the lengths."""
        row, column = self.axes
        return self._region("b", "h", f"{row}_start", f"{row}_len", f"{column}_len")

    def block_region(self) -> Region:
        """An empty region for a segment's block: the same, and the iteration."""
        row, column = self.axes
        return self._region(
            "b", "h", f"{row}_start", "i", f"{row}_len", f"{column}_len"
        )

    def _region(self, *names: str) -> Region:
        trailing = [*self.captures, *self.tables]
        types = [*([i32] * len(names)), *(v.type for v in trailing)]
        return new_region(types, [*names, *(v.name_hint for v in trailing)])


def is_always_true(mask: Region) -> bool:
    """Whether a mask region yields the constant true."""
    last = mask.block.last_op
    assert isinstance(last, flex.YieldOp)
    owner = last.values[0].owner
    return (
        isinstance(owner, arith.ConstantOp)
        and isinstance(owner.value, IntegerAttr)
        and owner.value.value.data != 0
    )


def with_positions_exchanged(mask: Region) -> Region:
    """The same mask as a function of (b, h, kv_idx, q_idx) and the captures."""
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
