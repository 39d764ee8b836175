"""Builders of kernels over segments: blocks of rows, visits of column blocks, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AffineMapAttr, StringAttr, UnitAttr, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.dialects.constants import int_constant
from flexc.dialects.tile import TileType
from flexc.passes.blocksparse.programs.heads import HeadLoop, Heads, end_of_first
from flexc.passes.blocksparse.programs.kernel_builder import KernelBuilder, rows_grid
from flexc.passes.scalar.readable import describe
from flexc.passes.scalar.scalar_code import ScalarCode, combined, inline_region
from flexc.passes.targets.target import Target


class Memory(NamedTuple):
    """The place in memory of a block of rows of a packed sequence."""

    row: tuple[SSAValue, SSAValue, SSAValue]
    """The batch, head and row of the block's first row."""
    row_end: SSAValue
    """The end of the rows that the program writes."""
    column: SSAValue
    """The sequence's first column."""


@dataclass(frozen=True)
class RowBlock:
    """The place of a block of rows: its batch, head and first row."""

    b: SSAValue
    h: SSAValue
    start: SSAValue
    memory: Memory | None = None
    """Its place in a packed sequence; None if positions are those in memory."""

    @property
    def where(self) -> list[SSAValue]:
        return [self.b, self.h, self.start]

    @property
    def stored(self) -> list[SSAValue]:
        """The index of the first row in tensors and memrefs."""
        return self.where if self.memory is None else [*self.memory.row]


@dataclass(frozen=True)
class Visit:
    """One block of columns of a segment."""

    segment: SegmentOp
    start: SSAValue
    """The first column of the block."""
    place: RowBlock
    """The rows for which the block is visited."""
    is_partial: SSAValue | None = None
    """The condition, in a mixed segment, that this block is partial."""
    exists: SSAValue | None = None
    """The condition that the block is to be visited; None if this is always true.

    The condition is false in the dummy iteration of an empty padded segment, and in
    iterations without columns of a segment that may skip.
    """
    count: SSAValue | None = None
    """The number of leading columns that are visited; None for the whole block."""
    is_inside: bool = False
    """True if the block is known to have no column beyond the last."""

    @property
    def sticks_out(self) -> bool:
        """True if the block may reach beyond the last column."""
        return self.segment.inside is None and not self.is_inside

    @property
    def flags(self) -> list[SSAValue]:
        """The conditions of the block that a map over its pairs takes as operands."""
        return [v for v in (self._tested, self.exists) if v is not None]

    @property
    def _tested(self) -> SSAValue | None:
        """`is_partial` if full blocks evaluate the mask too, else None."""
        has_mask = self.segment.mask_mod is not None
        return self.is_partial if has_mask and self.full_sticks_out else None

    @property
    def full_sticks_out(self) -> bool:
        """True if a full block may reach beyond the last column."""
        return self.sticks_out and self.segment.full_inside is None

    def may_have_dead_pairs(
        self, code: ScalarCode, block_n: int, column_len: SSAValue
    ) -> SSAValue | None:
        """Write the condition that pairs may be dead; None if blocks need no branch.

        A full segment that may be empty has few blocks, or comes with other segments: a
        branch for columns beyond the last saves nothing there. A branch saves nothing
        either for the few skipped iterations of trimmed segments.
        """
        if self.segment.kind.data == SegmentKind.PARTIAL or self.segment.is_trimmed:
            return None
        found = [] if self.is_partial is None else [self.is_partial]
        if self.full_sticks_out and (found or self.segment.is_entered):
            end = code.add(self.start, code.const(block_n))
            found.append(code.cmp("sgt", end, column_len))
        if self.exists is not None:
            found.append(code.not_(self.exists))
        return combined(code.or_, found)

    def live(
        self,
        code: ScalarCode,
        inside: SSAValue | None,
        mod_args: Sequence[SSAValue],
        flags: Sequence[SSAValue],
    ) -> SSAValue | None:
        """Write the condition that a pair is live; None if every pair is live.

        `flags` are the values of `self.flags` within the map.
        """
        given = list(flags)
        found: list[SSAValue] = []
        if self.segment.mask_mod is not None:
            (live,) = inline_region(self.segment.mask_mod, mod_args, code)
            if self._tested is not None:
                live = code.or_(live, code.not_(given.pop(0)))
            found.append(live)
        # This condition varies along columns only, so it is computed once for each
        # column.
        exists = combined(code.and_, [*([] if inside is None else [inside]), *given])
        return combined(code.and_, [*found, *([] if exists is None else [exists])])


KEPT = (
    "num_warps",
    "num_stages",
    "rows_per_part",
    "residents",
    "alignment",
    "index_width",
    "max_length",
)
"""The properties of an op that become attributes of its kernel."""

CACHED_NUMBERS = 1 << 22
"""The most elements of the keys of heads whose tiles start together.

The keys and values of these heads then stay in a GPU's cache. In gradients, queries,
output gradients and sums of query gradients take their place.
"""

LISTED_SHARE = 8
"""The columns for each one that rows with tables are expected to see.

See docs/measurements/2026-11-24-h200-varlen.md for masks of more and of fewer.
"""

Step = Callable[[Visit, list[SSAValue]], Sequence[SSAValue]]
"""A function that writes one iteration, from a visit and the loop state.

The function returns the new state.
"""


class SegmentKernelBuilder(KernelBuilder):
    """A builder of the kernel of one op over segments."""

    column_name = "kv_start"
    """The name hint of the first column of a block."""
    row_len: SSAValue
    """The number of rows of the sequence that the program's rows belong to."""
    column_len: SSAValue
    """The number of columns of that sequence."""

    def __init__(
        self,
        op: blocksparse.AttentionOp | blocksparse.PairSumsOp,
        name: str,
        target: Target,
    ):
        super().__init__(op, name, target)
        self.op = op
        self.block_m = op.block_m.value.data
        self.block_n = op.block_n.value.data

    @property
    def visited(self) -> SSAValue:
        """A matrix whose rows are the columns that programs visit."""
        op = self.op
        return op.key if isinstance(op, blocksparse.AttentionOp) else op.columns[0]

    def segments(self) -> list[SegmentOp]:
        return [o for o in self.op.segments.block.ops if isinstance(o, SegmentOp)]

    def kernel(self, attributes: dict[str, Attribute]) -> tile.KernelOp:
        """Return the kernel around the code that was built."""
        attributes = dict(self.op.attributes) | attributes
        known = self.op.properties
        attributes |= {fact: known[fact] for fact in KEPT if fact in known}
        return self.kernel_op(self.grid(), attributes)

    def summary(self) -> dict[str, Attribute]:
        """Return the lines about the computation in the emitted source's header."""
        segments = self.segments()
        masks = dict.fromkeys(
            describe(s.mask_mod) for s in segments if s.mask_mod is not None
        )
        return {
            "mask": StringAttr("; ".join(masks) or "none"),
            "segments": StringAttr(", ".join(s.kind.data.value for s in segments)),
        }

    def grid(self) -> AffineMapAttr:
        return rows_grid(self.block_m)

    def blocks(self, row_len: SSAValue) -> SSAValue:
        """Write the number of programs of a head, as the grid has it."""
        return self.code.ceildiv(row_len, self.block_m, "m_blocks")

    def tile_position(
        self, row_len: SSAValue, column_len: SSAValue, heads: SSAValue
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Write this program's batch, head and block of rows, in the op's order."""
        code = self.code
        block = code.insert(tile.ProgramIdOp(0), "m_block")
        h = code.insert(tile.ProgramIdOp(1), "h")
        b = code.insert(tile.ProgramIdOp(2), "b")
        blocks = self.blocks(row_len)
        if self.op.heads_per_group is not None:
            block, h = self.grouped(block, h, blocks, column_len, heads)
        if self.op.order and self.op.order.data == TileOrder.DESCENDING:
            last = code.sub(blocks, code.const(1))
            block = code.sub(last, block, "m_block")
        return b, h, block

    def grouped(
        self,
        block: SSAValue,
        h: SSAValue,
        blocks: SSAValue,
        column_len: SSAValue,
        heads: SSAValue,
    ) -> tuple[SSAValue, SSAValue]:
        """Renumber the programs of a batch: heads vary fastest within their group.

        The last group has the remaining heads.
        """
        code, one = self.code, self.code.const(1)
        assert self.op.heads_per_group is not None
        most = code.const(self.op.heads_per_group.value.data)
        cached = code.const(CACHED_NUMBERS // flex.tensor_shape(self.visited)[3])
        length = code.max(self.visible(column_len), one)
        size = code.max(code.div(cached, length), one)
        size = code.min(size, most, "heads_per_group")
        first = code.mul(code.div(h, size), size, "first_head")
        within = code.add(block, code.mul(code.sub(h, first), blocks), "program")
        left = code.sub(heads, first)
        count = code.min(left, size, "group_heads")
        head = code.add(first, code.rem(within, count), "h")
        return code.div(within, count, "m_block"), head

    def visible(self, column_len: SSAValue) -> SSAValue:
        """Write the number of columns that rows are expected to see."""
        if self.op.tables:
            return self.code.div(column_len, self.code.const(LISTED_SHARE))
        if self.op.sequences is None:
            return column_len
        code, *_, keys = self.code, *self.op.sequences.get_values()
        ends = code.insert(tile.DimOp(self.args[self.op.captures[keys]], 0))
        sequences = code.sub(ends, code.const(1), "sequences")
        return code.div(column_len, code.max(sequences, code.const(1)), "mean_length")

    def load(
        self,
        tensor: SSAValue,
        shape: tuple[int, int],
        start: Sequence[SSAValue],
        checked: Sequence[int],
        name: str,
        count: SSAValue | None = None,
        pages: SSAValue | None = None,
        element: Attribute | None = None,
        live: SSAValue | None = None,
    ) -> SSAValue:
        """Load the tile of rows that starts at (b, h, row), padded in the head dim.

        If `count` is given, only the first `count` rows of the tile are read. With
        `pages`, the rows are those of a sequence whose pages a table lists. With
        `element`, numbers are converted to a wider type. With `live`, a flag for each
        row, other rows are 0.
        """
        checked = [*checked, 1] if shape[1] > flex.tensor_shape(tensor)[3] else checked
        type_ = TileType(element or flex.element_type(tensor), shape)
        indices = [*start, self.code.const(0)]
        return self.code.insert(
            tile.LoadOp(self.args[tensor], indices, checked, type_, count, pages, live),
            name,
        )

    def loop(
        self,
        segment: SegmentOp,
        place: RowBlock,
        state: Sequence[SSAValue],
        step: Step,
        heads: Heads | None = None,
    ) -> list[SSAValue]:
        """Write the loop over a segment's blocks of columns; return the final state.

        If `heads` are given, the loop visits the segment for each of them. The bounds
        are those of `place`. The loop carries the position, which saves divisions.
        """
        trailing = [
            self.row_len,
            self.column_len,
            *(self.args[v] for v in (*self.op.captures, *self.op.tables)),
        ]
        begin, end = self.share(
            *inline_region(segment.bounds, [*place.where, *trailing], self.code)
        )
        carried = [*state]
        if heads is not None:
            carried += [heads.b, heads.h, begin]
        body = Block(arg_types=[i32, *(v.type for v in carried)])
        i, varying = body.args[0], [len(place.where)]
        if heads is not None:
            b, h, i = body.args[-3:]
            b.name_hint, h.name_hint = "q_b", "q_h"
            place = replace(place, b=b, h=h)
            varying += [0, 1]
        i.name_hint = "i"
        one = self.code.const(1)
        outer, self.code = self.code, ScalarCode(body)
        args = [*place.where, i, *trailing]
        visit = self.visited_block(
            segment, place, lambda r: inline_region(r, args, self.code, outer, varying)
        )
        if segment.padded is not None:
            # If there is no iteration, only the first one runs.
            visit = replace(visit, exists=outer.cmp("slt", begin, end))
            end = outer.insert(arith.MaxSIOp(end, outer.add(begin, one)), "end")
        bounds = begin, end
        head_loop = None
        if heads is not None:
            first_end = end_of_first(visit.is_partial, i, body)
            head_loop = HeadLoop.of(outer, heads, begin, end, first_end)
            bounds = outer.const(0), head_loop.count
            if first_end is not None:
                is_partial = head_loop.is_first_pass(self.code, body.args[0])
                visit = replace(visit, is_partial=is_partial)
        new = [*step(visit, list(body.args[1 : 1 + len(state)]))]
        if head_loop is not None:
            iteration = body.args[0], place.b, place.h, i
            new += head_loop.after(self.code, *iteration)
        self.code.builder.insert(scf.YieldOp(*new))
        self.code = outer
        loop = scf.ForOp(*bounds, one, carried, Region(body))
        loop.attributes["segment"] = segment.kind
        if segment.is_entered:
            loop.attributes["nonempty"] = UnitAttr()
        self.code.builder.insert(loop)
        return list(loop.results[: len(state)])

    def visited_block(
        self,
        segment: SegmentOp,
        place: RowBlock,
        inline: Callable[[Region], list[SSAValue]],
    ) -> Visit:
        """Write which block an iteration visits; `inline` writes a region."""
        start, *counts = inline(segment.block)
        start.name_hint = self.column_name
        is_partial = exists = count = None
        if segment.partial_if is not None:
            (is_partial,) = inline(segment.partial_if)
            is_partial.name_hint = "is_partial"
        if counts and not self.is_block(*counts):
            (count,) = counts
            count.name_hint = "count"
        if count is not None and segment.may_skip is not None:
            exists = self.code.cmp("sgt", count, self.code.const(0))
            count = self.code.max(count, self.code.const(1), "count")
        return Visit(segment, start, place, is_partial, exists, count)

    def share(self, begin: SSAValue, end: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the range of a segment's iterations that this program runs: all."""
        return begin, end

    def is_block(self, count: SSAValue) -> bool:
        """Return True if a number of columns is known to be that of a whole block."""
        return int_constant(count) == self.block_n
