"""Sums over pairs as the code of one program, which owns `block_m` rows of one head.

1. Find the program's rows; load their matrices and values.
2. For each query head that shares the head of the rows, and each segment, loop over
   blocks of columns: the dot products, the region over them, 0 for dead pairs, and the
   products of the region's values with the matrices of the columns.
3. Scale, round and store the sums.

In a transposed op rows are keys. The region takes the indices of the query and the key
in either case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from flexc.dialects import tile
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.tile import ReduceKind, TileType, element_of
from flexc.passes.blocksparse.programs.builder import RowBlock, Visit
from flexc.passes.blocksparse.programs.kernel_builder import (
    absorbed_matrices,
    aligned,
    grid_of,
    source_of,
)
from flexc.passes.blocksparse.programs.pair_tiles import PairKernelBuilder
from flexc.passes.scalar.scalar_code import ScalarCode, counted_loop
from flexc.passes.tile.map_builder import build_row_map, convert

Values = Sequence[SSAValue] | Mapping[int, SSAValue]
"""The values of pairs, by their numbers."""


class PairSumsKernelBuilder(PairKernelBuilder):
    """A builder of the kernel of one `blocksparse.pair_sums`."""

    group: SSAValue
    """The number of query heads that share a head of keys (with `per_query_head`)."""

    def build(self) -> tile.KernelOp:
        self.locate()
        self.load_rows()
        state = [self.zeros(value) for _, value in self.matrices]
        self.start_visits()
        if self.op.shares_rows:
            state = self.each_head(state)
        else:
            state = self.visit(self.place, state)
        self.end_visits()
        for (attr, result), acc in zip(self.matrices, state, strict=True):
            self.store_matrix(attr, result, acc)
        known = self.summary() | aligned(self.op, self.all_matrices)
        if self.op.per_query_head is not None:
            query, key = self.op.columns[0], self.op.rows[0]
            known |= grid_of(self.op, query, query, key)
            known["per_query_head"] = UnitAttr()
        return self.kernel(known)

    def start_visits(self) -> None:
        """Write what precedes the first block of columns."""

    def end_visits(self) -> None:
        """Write what follows the last block of columns."""

    @property
    def all_matrices(self) -> list[SSAValue]:
        """All matrices that the kernel reads or writes."""
        op, results = self.op, [value for _, value in self.matrices]
        return [*op.rows, *op.columns, *results, *absorbed_matrices(op)]

    def load_rows(self) -> None:
        """Load or compute the matrices of the rows."""
        self.place, self.made = self.rows, {}
        start = self.rows.start
        self.row_idx = self.code.insert(tile.IotaOp(start, self.block_m), "rows")
        self.row_tiles = [self.rows_of(m) for m in self.op.rows]

    def summary(self) -> dict[str, Attribute]:
        """Return the lines about the computation in the emitted source's header."""
        return {
            "sums": StringAttr(", ".join(str(attr) for attr in self.op.sums)),
            "rows": StringAttr("keys" if self.op.is_transposed else "queries"),
            **super().summary(),
        }

    def locate(self) -> None:
        """Write the rows that this program owns, and the sizes of both sides."""
        code = self.code
        own, other = (
            self.args[source_of(self.op.rows[0])],
            self.args[self.op.columns[0]],
        )
        self.row_len = code.insert(tile.DimOp(own, 2), "row_len")
        self.column_len = code.insert(tile.DimOp(other, 2), "column_len")
        of_heads = other if self.op.per_query_head is not None else own
        self.own_heads = code.insert(tile.DimOp(of_heads, 1), "own_heads")
        part_rows, part_heads = self.part()
        b, h, block = self.tile_position(part_rows, self.column_len, part_heads)
        if self.op.per_query_head is not None:
            h = self.apart(h)
        self.row_block = block
        start = code.mul(block, code.const(self.block_m), "row_start")
        self.stored = RowBlock(b, h, start)
        place = [b, h, start]
        for i, first in enumerate(self.op.tile_origin, 3 - len(self.op.tile_origin)):
            place[i] = code.add(place[i], self.args[first], place[i].name_hint)
        self.rows = RowBlock(place[0], place[1], place[2])
        if self.op.per_query_head is not None:
            self.key_rows = self.of_key(self.rows, self.op.rows[0])

    def apart(self, number: SSAValue) -> SSAValue:
        """Return the query head with this number in the order of launches.

        The first query head of each head of keys comes first, then the second ones. So
        programs that add to the same sums do not end at the same time.
        """
        code = self.code
        kv_heads = code.insert(tile.DimOp(self.args[self.op.rows[0]], 1), "kv_heads")
        self.group = code.div(self.own_heads, kv_heads, "group")
        first = code.mul(code.rem(number, kv_heads), self.group)
        return code.add(first, code.div(number, kv_heads), "h")

    def part(self) -> tuple[SSAValue, SSAValue]:
        """Return the numbers of rows and heads of the grid: those of the results."""
        if not self.op.tile_origin:
            return self.row_len, self.own_heads
        code, result = self.code, self.of_rows or self.op.sums_[0]
        heads, rows = (
            code.insert(tile.DimOp(self.args[result], dim), name)
            for dim, name in ((1, "part_heads"), (2, "part_rows"))
        )
        if self.of_rows is None:  # Diagonals have a row for each program.
            rows = code.mul(rows, code.const(self.block_m), "part_rows")
        return rows, heads

    def columns_of(self, place: RowBlock) -> RowBlock:
        """Return the origin of the matrices of the columns, for a query head."""
        origin = RowBlock(place.b, place.h, self.code.const(0))
        if self.op.is_transposed or self.op.paired_heads is not None:
            return origin
        return self.of_key(origin, self.op.columns[0])

    def of_key(self, origin: RowBlock, key: SSAValue) -> RowBlock:
        """Return the origin at the batch and head of the key that a query head reads.

        `own_heads` are the heads of the query.
        """
        code, matrix = self.code, self.args[key]
        heads = code.insert(tile.DimOp(matrix, 1), "kv_heads")
        h = code.div(code.mul(origin.h, heads), self.own_heads, "kv_h")
        # The key has as many batches as the query, or one.
        batches = code.insert(tile.DimOp(matrix, 0), "kv_batches")
        last = code.sub(batches, code.const(1))
        b = code.min(origin.b, last, "kv_b")
        return RowBlock(b, h, origin.start)

    def each_head(self, state: list[SSAValue]) -> list[SSAValue]:
        """Visit the segments of all query heads that share the head of the rows.

        These are `group` heads of each query batch that shares the batch of the rows.
        """
        code, rows = self.code, self.rows
        group, shared = self.sharing()

        def step(number: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            code = self.code
            b = code.add(code.mul(rows.b, shared), code.div(number, group), "q_b")
            h = code.add(code.mul(rows.h, group), code.rem(number, group), "q_h")
            return self.visit(RowBlock(b, h, rows.start), state)

        return counted_loop(self, code.mul(group, shared), state, step, ["shared"])

    def sharing(self) -> tuple[SSAValue, SSAValue]:
        """Return how many query heads, and query batches, share one of the rows."""
        code, other = self.code, self.args[self.op.columns[0]]
        batches = code.insert(tile.DimOp(other, 0), "batches")
        own_batches = code.insert(
            tile.DimOp(self.args[self.op.rows[0]], 0), "own_batches"
        )
        heads = code.insert(tile.DimOp(other, 1), "q_heads")
        group = code.div(heads, self.own_heads, "group")
        return group, code.div(batches, own_batches, "shared_batches")

    def visit(self, place: RowBlock, matrices: Sequence[SSAValue]) -> list[SSAValue]:
        """Visit the segments of one query head, and store its totals.

        Return the new state of the matrices.
        """
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
            if self.op.tile_origin:
                where = self.stored.where
            store = tile.StoreOp(total, self.args[result], where, self.checked)
            self.code.builder.insert(store)
        return state[:count]

    def narrowed_step(self, visit: Visit, state: list[SSAValue]) -> Sequence[SSAValue]:
        """Write the code for one block of columns, narrowed by the mask."""
        return self.step(self.narrowed(visit), state)

    def step(self, visit: Visit, state: list[SSAValue]) -> Sequence[SSAValue]:
        """Write the code for one block of columns; return the new state."""
        code, visited = self.code, visit.count
        tiles, checked = self.load_columns(visit)
        values = self.pair_values(visit, self.dots(tiles))
        new: list[SSAValue] = []
        count = len(self.matrices)
        for (attr, _), acc in zip(self.matrices, state[:count], strict=True):
            new.append(self.add_products(attr, values, tiles, acc, visited))
        for (attr, _), total in zip(self.totals, state[count:], strict=True):
            for (number,) in attr.term_list():
                row_sum = tile.ReduceOp(ReduceKind.SUM, values[number], 1, visited)
                parts = [total, code.insert(row_sum, "row_sum")]
                total = build_row_map(code, parts, ScalarCode.addf, "total")
            new.append(total)
        self.store_pairs(visit, values, checked)
        return new

    def load_columns(self, visit: Visit) -> tuple[list[SSAValue], list[int]]:
        """Load the matrices and the values of a block of columns.

        Return the tiles of the matrices, and the dimensions that are checked.
        """
        start, visited = visit.start, visit.count
        checked = [0] if visit.sticks_out else []
        self.column_idx = self.code.insert(tile.IotaOp(start, self.block_n), "columns")
        side = replace(self.columns, start=start)
        tiles = [
            self.load_matrix(m, self.block_n, side.where, checked, visited)
            for m in self.op.columns
        ]
        self.column_values = [
            self.load_values(v, start, self.block_n, checked, visited)
            for v in self.op.column_values
        ]
        return tiles, checked

    def add_products(
        self,
        attr: SumAttr,
        values: Values,
        columns: Sequence[SSAValue],
        acc: SSAValue,
        count: SSAValue | None,
    ) -> SSAValue:
        """Write acc + values @ columns for all terms and the first `count` columns."""
        for number, column in attr.term_list():
            element = element_of(columns[column].type)
            weights = convert(self.code, values[number], element)
            acc = self.code.insert(
                tile.DotOp(weights, columns[column], acc, count), "acc"
            )
        return acc

    def column_sums(
        self,
        attr: SumAttr,
        result: SSAValue,
        values: Values,
        factors: Sequence[SSAValue],
        count: SSAValue | None = None,
    ) -> SSAValue:
        """Write the transpose of values, times the first `count` rows of `factors`."""
        code = self.code
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_n))
        zero = code.const(0.0, self.op.score_type)
        acc = code.insert(tile.FullOp(zero, type_), "zeros")
        for (number, _), rows in zip(attr.term_list(), factors, strict=True):
            weights = convert(code, values[number], element_of(rows.type))
            turned = code.insert(tile.TransposeOp(weights), "turned")
            dot = tile.DotOp(turned, rows, acc, count)
            acc = code.insert(dot, f"{result.name_hint or 'column'}_sums")
        return acc


PART, HEAD, BATCH = range(3)
"""The axes of the grid."""


class OnePassKernelBuilder(PairSumsKernelBuilder):
    """A builder of a `blocksparse.pair_sums` with sums by row and by column.

    The kernel visits each pair once. A program owns the columns of one key head, so no
    other program adds to their sums. If several programs share a key head, each has a
    part of the results of its own. The program's rows are those of all query heads that
    share the key head. Each of `parts` programs takes every `parts`-th block of rows,
    as late rows may see more columns than early ones.

    1. For each block of rows, load the rows and visit segments.
    2. For each block of columns, add to the sums by column in memory. Counts leave
       out rows and columns beyond the last.
    3. Scale, round and store the sums by row.

    The runtime fills sums by column with zeros before the launch, and adds up the
    parts.
    """

    def build(self) -> tile.KernelOp:
        self.by_column = self.of_kind(SumKind.COLUMN_MATRIX)
        self.locate()
        self.each_block_of_rows()
        kinds = [attr.sum_kind for attr in self.op.sums]
        result = self.op.sums_[kinds.index(SumKind.COLUMN_MATRIX)]
        known = aligned(self.op, self.all_matrices) | grid_of(self.op, *[result] * 3)
        return self.kernel(self.summary() | known)

    def grid(self) -> AffineMapAttr:
        """Return a grid with a program for each part of each head."""
        parts, b, h = (AffineExpr.dimension(i) for i in range(3))
        return AffineMapAttr(AffineMap(3, 0, (parts, h, b)))

    def locate(self) -> None:
        """Write the columns that this program owns, and the sizes of both sides."""
        code = self.code
        query, key = (
            self.args[source_of(self.op.rows[0])],
            self.args[self.op.columns[0]],
        )

        def sizes(dim: int, name: str) -> tuple[SSAValue, SSAValue]:
            q_size, kv_size = (
                code.insert(tile.DimOp(tensor, dim), f"{side}_{name}")
                for side, tensor in (("q", query), ("kv", key))
            )
            return q_size, kv_size

        self.row_len, self.column_len = sizes(2, "len")
        self.part_id, h, b = (
            code.insert(tile.ProgramIdOp(axis), name)
            for axis, name in ((PART, "part"), (HEAD, "kv_h"), (BATCH, "kv_b"))
        )
        self.columns = RowBlock(b, h, code.const(0))
        parts = tile.DimOp(self.args[self.by_column[0][1]], 0)
        self.parts = code.insert(parts, "parts")
        self.group = code.div(*sizes(1, "heads"), "group")
        self.shared = code.div(*sizes(0, "batches"), "shared_batches")
        rows = self.row_len
        if self.op.tile_origin:
            assert self.of_rows is not None
            rows = code.insert(tile.DimOp(self.args[self.of_rows], 2), "part_rows")
        self.row_blocks = code.ceildiv(rows, self.block_m, "row_blocks")

    def each_block_of_rows(self) -> None:
        """Write the loop over this part's blocks of rows."""
        code = self.code
        heads = code.mul(self.group, self.shared)
        blocks = code.mul(heads, self.row_blocks, "blocks")
        left = code.sub(blocks, self.part_id)
        count = code.add(left, code.sub(self.parts, code.const(1)))
        count = code.div(count, self.parts, "own_blocks")
        counted_loop(self, count, [], self.block_of_rows, ["n"])

    def block_of_rows(self, n: SSAValue, _: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """Write the code for the n-th of this part's blocks of rows."""
        code = self.code
        number = code.add(self.part_id, code.mul(n, self.parts), "number")
        head = code.div(number, self.row_blocks, "shared")
        block = code.rem(number, self.row_blocks, "m_block")
        start = code.mul(block, code.const(self.block_m), "row_start")
        b = code.mul(self.columns.b, self.shared)
        b = code.add(b, code.div(head, self.group), "q_b")
        h = code.mul(self.columns.h, self.group)
        h = code.add(h, code.rem(head, self.group), "q_h")
        self.rows = self.stored = RowBlock(b, h, start)
        for first in self.op.tile_origin:
            start = code.add(start, self.args[first], "row_start")
            self.rows = RowBlock(b, h, start)
        left = code.sub(self.row_len, start)
        size = arith.MinSIOp(left, code.const(self.block_m))
        self.row_count = code.insert(size, "row_count")
        self.load_rows()
        self.column_factors = [self.factors(attr) for attr, _ in self.by_column]
        state = [self.zeros(value) for _, value in self.matrices]
        state = self.visit(self.place, state)
        for (attr, result), acc in zip(self.matrices, state, strict=True):
            self.store_matrix(attr, result, acc)
        return ()

    def columns_of(self, place: RowBlock) -> RowBlock:
        return self.columns

    def factors(self, attr: SumAttr) -> list[SSAValue]:
        """Return the row matrices of a sum by column, scaled if that scales the sum."""
        rows = [self.row_tiles[number] for _, number in attr.term_list()]
        scales = self.scales_rows(attr)
        return [self.scaled(tile_) if scales else tile_ for tile_ in rows]

    def scales_rows(self, attr: SumAttr) -> bool:
        """Return True if a sum by column is scaled by scaling its rows.

        This is cheaper than scaling the values of pairs. But scaled 16-bit rows would
        have to be rounded again, or multiplied as wider numbers.
        """
        rows = [self.row_tiles[number] for _, number in attr.term_list()]
        is_wide = all(element_of(x.type) == self.op.score_type for x in rows)
        return attr.scaled and is_wide

    @property
    def diagonals(self) -> list[SSAValue]:
        """The origin of the sums along diagonals: one for each part of a head."""
        return [self.rows.b, self.rows.h, self.part_id]

    def store_pairs(
        self, visit: Visit, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        super().store_pairs(visit, values, checked)
        start, count = visit.start, visit.count
        if count is None and checked:
            left = self.code.sub(self.column_len, start)
            size = arith.MinSIOp(left, self.code.const(self.block_n))
            count = self.code.insert(size, "column_count")
        for (attr, result), factors in zip(
            self.by_column, self.column_factors, strict=True
        ):
            self.add_to_columns(attr, result, values, factors, start, count)

    def add_to_columns(
        self,
        attr: SumAttr,
        result: SSAValue,
        values: Values,
        factors: Sequence[SSAValue],
        start: SSAValue,
        count: SSAValue | None,
    ) -> None:
        """Add the sums of a block of columns to those in memory."""
        code = self.code
        if attr.scaled and not self.scales_rows(attr):
            values = {n: self.scaled(values[n]) for n, _ in attr.term_list()}
        sums = self.column_sums(attr, result, values, factors, self.row_count)
        where = [self.part_id, *self.columns.where[:2], start, code.const(0)]
        code.builder.insert(tile.AddToOp(sums, self.args[result], where, count))
