"""Which columns of a block are worth visiting, where only the mask knows.

A table lists whole blocks, of which a program's rows may see a few columns: the ends of
a document, a diagonal. The mask is cheap beside two matrix products, so a program asks
it first, and visits the columns from the first to the last that any of its rows sees.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.dialects import blocksparse, tile
from flexc.dialects.tile import ReduceKind
from flexc.passes.blocksparse.programs.builder import Place, ProgramBuilder
from flexc.passes.blocksparse.programs.visits import Visit
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import (
    COLUMN,
    ROW,
    UNIFORM,
    Input,
    build_map,
)


def narrowed(
    program: ProgramBuilder, visit: Visit, place: Place, rows: SSAValue
) -> Visit:
    """A visit cut to the columns that the mask keeps; of one column if it keeps none.

    `rows` are the indices of the program's rows.
    """
    if visit.segment.narrowed is None:
        return visit
    code = program.code
    live = live_pairs(program, visit, place, rows)
    seen = code.insert(tile.ReduceOp(ReduceKind.MAX, live, 0), "seen")
    found = tile.LiveRangeOp(seen, visit.count)
    code.builder.insert(found)
    found.first.name_hint, found.length.name_hint = "first_seen", "seen_count"
    start = code.add(visit.start, found.first, program.column_name)
    count = code.insert(arith.MaxSIOp(found.length, code.const(1)), "count")
    return replace(visit, start=start, count=count)


def live_pairs(
    program: ProgramBuilder, visit: Visit, place: Place, rows: SSAValue
) -> SSAValue:
    """Whether pairs of a block count, by the mask alone."""
    code, op = program.code, program.op
    transposed = isinstance(op, blocksparse.PairSumsOp) and op.is_transposed
    columns = code.insert(tile.IotaOp(visit.start, program.block_n), "columns")
    captures = [program.args[c] for c in op.captures]
    inputs: list[Input] = [
        *((length, UNIFORM) for length in place.lengths),
        (place.b, UNIFORM),
        (place.h, UNIFORM),
        (rows, ROW),
        (columns, COLUMN),
        *((c, UNIFORM) for c in (*captures, *visit.flags)),
    ]

    def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
        row_len, column_len, b, h, row, column, *rest = args
        if program.clamps(visit):
            column = program.at_most_last(code, column, column_len)
        if program.trusts_captures and not program.guards(visit):
            row = program.at_most_last(code, row, row_len)
        positions = (column, row) if transposed else (row, column)
        captured, flags = rest[: len(captures)], rest[len(captures) :]
        live = visit.live(code, None, [b, h, *positions, *captured], flags)
        assert live is not None
        return live

    return build_map(code, [program.block_m, program.block_n], inputs, body, "live")
