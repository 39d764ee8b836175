"""Sums over pairs as the code of one program, which owns `block_m` rows of one head.

1. Find the program's rows and load what they have.
2. For each head of the query that shares the rows' head, and each segment, loop over
   blocks of columns: the dot products, the region over them, 0 where a pair is dead,
   and the products of its values with the columns' matrices.
3. Scale, round and store what was summed.

Rows are keys in a transposed op; the region is in terms of the query's and the key's
indices either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.flex import SumAttr
from flexc.dialects.tile import ReduceKind, TileType, element_of
from flexc.passes.analysis.describe import describe
from flexc.passes.online_softmax import convert
from flexc.passes.programs.arguments import aligned, matrices_of_makers, source_of
from flexc.passes.programs.builder import Place
from flexc.passes.programs.narrowing import narrowed
from flexc.passes.programs.pair_tiles import Side
from flexc.passes.programs.pair_values import PairValues
from flexc.passes.programs.visits import Visit
from flexc.passes.scalar_code import ScalarCode


class PairSumsProgram(PairValues):
    """Builds the kernel of one `blocksparse.pair_sums`."""

    def build(self) -> tile.KernelOp:
        self.locate()
        self.load_rows()
        state = [self.zeros(value) for _, value in self.matrices]
        if self.op.paired_heads is not None or not self.op.is_transposed:
            state = self.visit(self.place, state)
        else:
            state = self.each_head(state)
        for (attr, result), acc in zip(self.matrices, state, strict=True):
            self.store_matrix(attr, result, acc)
        return self.kernel(self.summary() | aligned(self.op, self.all_matrices))

    @property
    def all_matrices(self) -> list[SSAValue]:
        """What it reads and writes rows of."""
        op, results = self.op, [value for _, value in self.matrices]
        return [*op.rows, *op.columns, *results, *matrices_of_makers(op)]

    def load_rows(self) -> None:
        """Load the rows' matrices, or make them."""
        self.place, self.made = self.own_place(), {}
        start = self.rows.start
        self.row_idx = self.code.insert(tile.IotaOp(start, self.block_m), "rows")
        self.row_tiles = [self.rows_of(m) for m in self.op.rows]

    def summary(self) -> dict[str, Attribute]:
        """What the header of the emitted source says that it computes."""
        masks = dict.fromkeys(
            describe(s.mask_mod) for s in self.segments() if s.mask_mod is not None
        )
        return {
            "sums": StringAttr(", ".join(str(attr) for attr in self.op.sums)),
            "rows": StringAttr("keys" if self.op.is_transposed else "queries"),
            "mask": StringAttr("; ".join(masks) or "none"),
            "segments": StringAttr(
                ", ".join(s.kind.data.value for s in self.segments())
            ),
        }

    # Places

    def locate(self) -> None:
        """Which rows this program owns, and the sizes of both sides."""
        code = self.code
        own, other = (
            self.args[source_of(self.op.rows[0])],
            self.args[self.op.columns[0]],
        )
        self.row_len = code.insert(tile.DimOp(own, 2), "row_len")
        self.column_len = code.insert(tile.DimOp(other, 2), "column_len")
        self.own_heads = code.insert(tile.DimOp(own, 1), "own_heads")
        b, h, block = self.tile_position(*self.part())
        self.row_block = block
        start = code.mul(block, code.const(self.block_m), "row_start")
        self.stored = Side(b, h, start)
        place = [b, h, start]
        for i, first in enumerate(self.op.first, 3 - len(self.op.first)):
            place[i] = code.add(place[i], self.args[first], place[i].name_hint)
        self.rows = Side(*place)

    def part(self) -> tuple[SSAValue, SSAValue]:
        """How many rows and heads there are programs for: those of the results."""
        if not self.op.first:
            return self.row_len, self.own_heads
        code, result = self.code, self.of_rows or self.op.sums_[0]
        heads, rows = (
            code.insert(tile.DimOp(self.args[result], dim), name)
            for dim, name in ((1, "part_heads"), (2, "part_rows"))
        )
        if self.of_rows is None:  # Diagonals have a row for each program.
            rows = code.mul(rows, code.const(self.block_m), "part_rows")
        return rows, heads

    def own_place(self) -> Place:
        """The place of a program whose rows belong to one head of the query."""
        rows = self.rows
        return Place(rows.b, rows.h, rows.start, self.row_len, self.column_len)

    def columns_of(self, place: Place) -> Side:
        """Where the columns' matrices are, for a head of the query."""
        code, zero = self.code, self.code.const(0)
        if self.op.is_transposed:
            return Side(place.b, place.h, zero)
        if self.op.paired_heads is not None:
            return Side(place.b, place.h, zero)
        matrix = self.args[self.op.columns[0]]
        heads = code.insert(tile.DimOp(matrix, 1), "column_heads")
        h = code.div(code.mul(place.h, heads), self.own_heads, "kv_h")
        # As many batches as the query has, or one.
        batches = code.insert(tile.DimOp(matrix, 0), "column_batches")
        last = code.sub(batches, code.const(1))
        b = code.insert(arith.MinSIOp(place.b, last), "kv_b")
        return Side(b, h, zero)

    def each_head(self, state: list[SSAValue]) -> list[SSAValue]:
        """Visit the segments of all heads of the query that share the rows' head.

        They are `heads` of each of the batches that share the rows' batch.
        """
        code, rows = self.code, self.rows
        other = self.args[self.op.columns[0]]
        batches = code.insert(tile.DimOp(other, 0), "batches")
        own_batches = code.insert(
            tile.DimOp(self.args[self.op.rows[0]], 0), "own_batches"
        )
        heads = code.insert(tile.DimOp(other, 1), "q_heads")
        group = code.div(heads, self.own_heads, "group")
        shared = code.div(batches, own_batches, "shared_batches")
        body = Block(arg_types=[i32, *(v.type for v in state)])
        number = body.args[0]
        number.name_hint = "shared"
        outer, self.code = self.code, ScalarCode(body)
        inner = self.code
        b = inner.add(inner.mul(rows.b, shared), inner.div(number, group), "q_b")
        h = inner.add(inner.mul(rows.h, group), inner.rem(number, group), "q_h")
        place = Place(b, h, rows.start, self.row_len, self.column_len)
        left = self.visit(place, list(body.args[1:]))
        inner.builder.insert(scf.YieldOp(*left))
        self.code = outer
        count = code.mul(group, shared)
        loop = scf.ForOp(code.const(0), count, code.const(1), state, Region(body))
        code.builder.insert(loop)
        return list(loop.results)

    # Visiting columns

    def visit(self, place: Place, matrices: list[SSAValue]) -> list[SSAValue]:
        """Visit the segments of one head of the query; store what is its own."""
        self.place, self.columns = place, self.columns_of(place)
        row_type = TileType(self.op.score_type, [self.block_m])
        zero = self.code.const(0.0, self.op.score_type)
        totals = [self.code.insert(tile.FullOp(zero, row_type)) for _ in self.totals]
        self.row_values = [self.rows_of(v) for v in self.op.row_values]
        state = [*matrices, *totals]
        for segment in self.segments():
            state = self.loop(segment, place, state, self.narrowed_step)
        count = len(matrices)
        for (_, result), total in zip(self.totals, state[count:], strict=True):
            where = [place.b, place.h, place.start]
            if self.op.first:
                where = self.stored.where
            store = tile.StoreOp(total, self.args[result], where, self.checked)
            self.code.builder.insert(store)
        return state[:count]

    def narrowed_step(self, visit: Visit, state: list[SSAValue]) -> Sequence[SSAValue]:
        """One block of columns, or what the mask keeps of it."""
        return self.step(narrowed(self, visit, self.place, self.row_idx), state)

    def step(self, visit: Visit, state: list[SSAValue]) -> Sequence[SSAValue]:
        """One block of columns."""
        code, start, visited = self.code, visit.start, visit.count
        checked = [0] if visit.sticks_out else []
        self.column_idx = code.insert(tile.IotaOp(start, self.block_n), "columns")
        side = replace(self.columns, start=start)
        tiles = [
            self.load_matrix(m, self.block_n, side.where, checked, visited)
            for m in self.op.columns
        ]
        self.column_values = [
            self.load_values(v, start, self.block_n, checked, visited)
            for v in self.op.column_values
        ]
        values = self.values(visit, self.dots(tiles))
        new: list[SSAValue] = []
        count = len(self.matrices)
        for (attr, _), acc in zip(self.matrices, state[:count], strict=True):
            new.append(self.add_products(attr, values, tiles, acc, visited))
        for (attr, _), total in zip(self.totals, state[count:], strict=True):
            for (number,) in attr.term_list():
                row_sum = tile.ReduceOp(ReduceKind.SUM, values[number], 1, visited)
                total = self.add(total, code.insert(row_sum, "row_sum"))
            new.append(total)
        self.store_pairs(visit, values, checked)
        return new

    def add_products(
        self,
        attr: SumAttr,
        values: Sequence[SSAValue],
        columns: Sequence[SSAValue],
        acc: SSAValue,
        count: SSAValue | None,
    ) -> SSAValue:
        """acc + values @ columns, of all terms and the first `count` columns."""
        for number, column in attr.term_list():
            element = element_of(columns[column].type)
            weights = convert(self.code, values[number], element)
            acc = self.code.insert(
                tile.DotOp(weights, columns[column], acc, count), "acc"
            )
        return acc
