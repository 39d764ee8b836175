"""Blocks of rows that begin where packed sequences begin.

A sequence has blocks at multiples of the block's size, counted from the sequence's
first row. Program i owns the block with row i * size of all rows. The last block of a
sequence may contain no such row. So there is one more program for each sequence, which
owns that block, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from flexc.dialects import flex, tile
from flexc.passes.blocksparse.programs.builder import Memory, RowBlock
from flexc.passes.masks.segments.sequences import PackedSequences, Place, load
from flexc.passes.scalar.scalar_code import ScalarCode


def sequences_grid(block: int) -> AffineMapAttr:
    """Return a grid with programs for all blocks of rows of long sequences.

    There are at most as many sequences as the rows divided by the mean length of long
    ones.
    """
    b, h, rows = (AffineExpr.dimension(i) for i in range(3))
    blocks = rows.ceil_div(block) + rows // flex.LONG_SEQUENCE
    return AffineMapAttr(AffineMap(3, 0, (blocks, h, b)))


def blocks_of_sequences(code: ScalarCode, rows: SSAValue, block: int) -> SSAValue:
    """Write the number of programs of a head in `sequences_grid`."""
    more = code.div(rows, code.const(flex.LONG_SEQUENCE))
    return code.add(code.ceildiv(rows, block), more, "m_blocks")


def block_of_sequence(
    code: ScalarCode,
    packed: PackedSequences,
    captures: Sequence[SSAValue],
    program: tuple[SSAValue, SSAValue, SSAValue],
    rows: SSAValue,
    size: int,
) -> tuple[RowBlock, SSAValue, SSAValue]:
    """Write the block of a program, given its batch, head and number.

    `rows` is the number of all rows. A program that owns nothing ends. Return the block
    and its sequence's numbers of rows and of columns.
    """
    b, h, number = program
    one, step = code.const(1), code.const(size)
    starts = captures[packed.row_starts]
    sequences = code.sub(code.insert(tile.DimOp(starts, 0)), one, "sequences")
    blocks = code.ceildiv(rows, size)
    row = code.mul(code.min(number, code.sub(blocks, one)), step, "row")
    is_more = code.cmp("sge", number, blocks)
    more = code.sub(number, blocks)
    # Both candidates are computed, so that few loads wait for each other.
    of_row = load(code, captures[packed.of_row], row, "of_row")
    last = code.min(more, code.sub(sequences, one))
    place = Place.of(code, packed, code.select(is_more, last, of_row), captures)
    row_len = code.sub(place.row_end, place.row_start, "row_len")
    column_len = code.sub(place.column_end, place.column_start, "column_len")
    before = code.select(
        is_more, code.sub(row_len, one), code.sub(row, place.row_start)
    )
    start = code.mul(code.div(before, step), step, "start")
    first = code.add(place.row_start, start, "first_row")
    # A last block without a row of another program, of a sequence with rows.
    following = code.mul(code.ceildiv(first, size), step)
    is_own = code.and_(
        code.cmp("sge", following, place.row_end),
        code.cmp("slt", first, place.row_end),
    )
    is_own = code.and_(is_own, code.cmp("slt", more, sequences))
    is_owner = code.or_(code.cmp("slt", number, blocks), is_own)
    code.builder.insert(tile.ReturnUnlessOp(is_owner))
    memory = Memory((b, h, first), place.row_end, place.column_start)
    return RowBlock(place.number, h, start, memory), row_len, column_len
