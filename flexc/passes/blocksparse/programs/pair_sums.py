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

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.tile import ReduceKind, TileType, element_of
from flexc.passes.blocksparse.programs.arguments import (
    aligned,
    matrices_of_makers,
    source_of,
)
from flexc.passes.blocksparse.programs.builder import Place, guard_captures
from flexc.passes.blocksparse.programs.narrowing import narrowed
from flexc.passes.blocksparse.programs.online_softmax import convert
from flexc.passes.blocksparse.programs.pair_tiles import PairTiles, Side
from flexc.passes.blocksparse.programs.visits import Visit
from flexc.passes.scalar.describe import describe
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_maps,
)

# The values of a block of pairs: dot products, the region over them, dead pairs.


Body = Callable[..., Sequence[SSAValue]]


class PairValues(PairTiles):
    """A program of one `blocksparse.pair_sums`, as far as it computes values."""

    row_tiles: Sequence[SSAValue]
    """Of each matrix of the rows."""
    row_values: Sequence[SSAValue]
    column_values: Sequence[SSAValue]
    row_idx: SSAValue
    column_idx: SSAValue

    def dots(self, columns: Sequence[SSAValue]) -> list[SSAValue]:
        """The dot products that feed the region."""
        code = self.code
        zero = code.const(0.0, self.op.score_type)
        type_ = TileType(self.op.score_type, [self.block_m, self.block_n])
        found: list[SSAValue] = []
        for product in self.op.product_list():
            acc = code.insert(tile.FullOp(zero, type_), "zeros")
            for row, column in product:
                turned = code.insert(tile.TransposeOp(columns[column]))
                turned.name_hint = f"{columns[column].name_hint}_t"
                acc = code.insert(tile.DotOp(self.row_tiles[row], turned, acc), "dot")
            found.append(acc)
        return found

    def values(self, visit: Visit, dots: Sequence[SSAValue]) -> list[SSAValue]:
        """What the region yields, 0 for dead pairs."""
        doubtful = visit.doubtful(self.code, self.block_n, self.column_len)
        if doubtful is None:
            return self.region_values(visit, dots)
        values = self.region_values(visit, dots, masks=False)
        then = Block()
        outer, self.code = self.code, ScalarCode(then)
        live = self.masked(visit, values)
        self.code.builder.insert(scf.YieldOp(*live))
        self.code = outer
        otherwise = Block([scf.YieldOp(*values)])
        types = [v.type for v in values]
        branch = scf.IfOp(doubtful, types, Region(then), Region(otherwise))
        branch.attributes["segment"] = SegmentKindAttr(SegmentKind.PARTIAL)
        self.code.builder.insert(branch)
        return list(branch.results)

    def pair_inputs(self) -> list[Input]:
        """What regions receive of a pair: lengths, indices and captures."""
        captures = [self.args[c] for c in self.op.captures]
        return [
            (self.row_len, UNIFORM),
            (self.column_len, UNIFORM),
            (self.place.b, UNIFORM),
            (self.place.h, UNIFORM),
            (self.row_idx, ROW),
            (self.column_idx, COLUMN),
            *((c, UNIFORM) for c in captures),
        ]

    def region_values(
        self, visit: Visit, dots: Sequence[SSAValue], masks: bool = True
    ) -> list[SSAValue]:
        """What the region yields; 0 for dead pairs, if it `masks`."""
        given: list[Input] = [
            *((dot, FULL) for dot in dots),
            (self.args[self.op.scale], UNIFORM),
            *((v, ROW) for v in self.row_values),
            *((v, COLUMN) for v in self.column_values),
        ]

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            own, pair = list(args[: len(given)]), args[len(given) :]
            mod_args, inside, flags = self.pair(code, visit, pair, masks)
            values = inline_region(self.op.pairs, [*own, *mod_args], code)
            live = visit.live(code, inside, mod_args, flags) if masks else inside
            return [self.select(code, live, v) for v in values]

        return self.map_of(visit, given, body)

    def masked(self, visit: Visit, values: list[SSAValue]) -> list[SSAValue]:
        """Values of a block that has dead pairs, 0 for these."""

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            own, pair = args[: len(values)], args[len(values) :]
            mod_args, inside, flags = self.pair(code, visit, pair)
            live = visit.live(code, inside, mod_args, flags)
            return [self.select(code, live, v) for v in own]

        return self.map_of(visit, [(v, FULL) for v in values], body)

    def map_of(self, visit: Visit, given: list[Input], body: Body) -> list[SSAValue]:
        last = self.op.pairs.block.last_op
        assert last is not None
        names = [v.name_hint or "value" for v in last.operands]
        flags: list[Input] = [(flag, UNIFORM) for flag in visit.flags]
        inputs = [*given, *self.pair_inputs(), *flags]
        shape = (self.block_m, self.block_n)
        results = build_maps(self.code, shape, inputs, body, names)
        if self.guards(visit):
            guard_captures(results[0])
        return results

    def pair(
        self,
        code: ScalarCode,
        visit: Visit,
        args: Sequence[SSAValue],
        masks: bool = True,
    ) -> tuple[list[SSAValue], SSAValue | None, list[SSAValue]]:
        """b, h, q_idx, kv_idx and captures; whether the pair exists, if asked; flags.

        Columns are asked for where the map `masks`.
        """
        row_len, column_len, b, h, row, column, *rest = args
        captured, flags = rest[: len(self.op.captures)], rest[len(self.op.captures) :]
        inside = None
        if visit.sticks_out and masks:
            inside = code.cmp("slt", column, column_len)
        if self.checked and (self.needs_rows or self.trusts_captures):
            if self.needs_rows:
                exists = code.cmp("slt", row, row_len)
                inside = exists if inside is None else code.and_(inside, exists)
            row = self.at_most_last(code, row, row_len)
        if self.clamps(visit):
            column = self.at_most_last(code, column, column_len)
        q_idx, kv_idx = (column, row) if self.op.is_transposed else (row, column)
        return [b, h, q_idx, kv_idx, *captured], inside, flags

    @property
    def needs_rows(self) -> bool:
        """Whether rows beyond the last would count: they are added to others."""
        return bool(self.of_kind(SumKind.DIAGONAL))

    @staticmethod
    def select(code: ScalarCode, live: SSAValue | None, value: SSAValue) -> SSAValue:
        if live is None:
            return value
        return code.select(live, value, code.const(0.0, value.type))


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
