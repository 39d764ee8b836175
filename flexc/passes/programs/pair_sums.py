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
from dataclasses import dataclass, replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import StringAttr, TensorType, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr, SegmentOp
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.tile import ReduceKind, TileType, element_of
from flexc.passes.analysis.describe import describe
from flexc.passes.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_maps,
)
from flexc.passes.online_softmax import convert
from flexc.passes.programs.builder import (
    Place,
    ProgramBuilder,
    aligned,
    guard_captures,
)
from flexc.passes.scalar_code import ScalarCode, inline_region
from flexc.passes.tile_sizes import UNALIGNED_VALUE_DIM, padded_head_dim

Body = Callable[..., Sequence[SSAValue]]


@dataclass(frozen=True)
class Side:
    """Where the matrices of one side are read: batch, head, first position."""

    b: SSAValue
    h: SSAValue
    start: SSAValue

    @property
    def where(self) -> list[SSAValue]:
        return [self.b, self.h, self.start]


class PairSumsProgram(ProgramBuilder):
    """Builds the kernel of one `blocksparse.pair_sums`."""

    op: blocksparse.PairSumsOp

    def __init__(self, op: blocksparse.PairSumsOp, name: str, target: str):
        super().__init__(op, name, target)
        self.op = op
        self.sums = list(zip(op.sums, op.sums_, strict=True))
        self.matrices = self.of_kind(SumKind.MATRIX)
        self.totals = self.of_kind(SumKind.TOTAL)
        whole = op.length_multiple(of_rows=True) % self.block_m == 0
        self.checked: list[int] = [] if whole else [0]
        if op.is_transposed:
            self.column_name = "q_start"

    def of_kind(self, kind: SumKind) -> list[tuple[SumAttr, SSAValue]]:
        return [(attr, value) for attr, value in self.sums if attr.sum_kind == kind]

    def build(self) -> tile.KernelOp:
        self.locate()
        code = self.code
        self.row_idx = code.insert(tile.IotaOp(self.rows.start, self.block_m), "rows")
        self.row_tiles = [
            self.load_matrix(m, self.block_m, self.rows.where, self.checked)
            for m in self.op.rows
        ]
        state = [self.zeros(value) for _, value in self.matrices]
        if self.op.paired_heads is not None or not self.op.is_transposed:
            state = self.visit(self.own_place(), state)
        else:
            state = self.each_head(state)
        for (attr, result), acc in zip(self.matrices, state, strict=True):
            self.store_matrix(attr, result, acc)
        matrices = [*self.op.rows, *self.op.columns, *(v for _, v in self.matrices)]
        return self.kernel(self.summary() | aligned(self.op, matrices))

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
        own, other = (self.args[group[0]] for group in (self.op.rows, self.op.columns))
        self.row_len = code.insert(tile.DimOp(own, 2), "row_len")
        self.column_len = code.insert(tile.DimOp(other, 2), "column_len")
        self.own_heads = code.insert(tile.DimOp(own, 1), "own_heads")
        b, h, block = self.tile_position(*self.part())
        self.row_block = block
        start = code.mul(block, code.const(self.block_m), "row_start")
        self.stored = Side(b, h, start)
        if self.op.first:
            offsets = [self.args[v] for v in self.op.first]
            b, h, start = (
                code.add(v, offset, v.name_hint)
                for v, offset in zip((b, h, start), offsets, strict=True)
            )
        self.rows = Side(b, h, start)

    def part(self) -> tuple[SSAValue, SSAValue]:
        """How many rows and heads there are programs for: those of the results."""
        if not self.op.first:
            return self.row_len, self.own_heads
        (attr, result), code = self.sums[0], self.code
        heads, rows = (
            code.insert(tile.DimOp(self.args[result], dim), name)
            for dim, name in ((1, "part_heads"), (2, "part_rows"))
        )
        if attr.sum_kind == SumKind.DIAGONAL:  # It has a row for each program.
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
        self.row_values = [
            self.load_values(v, place.start, self.block_m, self.checked)
            for v in self.op.row_values
        ]
        state = [*matrices, *totals]
        for segment in self.segments():
            state = self.loop(segment, place, state, self.step)
        count = len(matrices)
        for (_, result), total in zip(self.totals, state[count:], strict=True):
            where = [place.b, place.h, place.start]
            if self.op.first:
                where = self.stored.where
            store = tile.StoreOp(total, self.args[result], where, self.checked)
            self.code.builder.insert(store)
        return state[:count]

    def step(
        self,
        segment: SegmentOp,
        start: SSAValue,
        state: list[SSAValue],
        masked: SSAValue | None,
    ) -> Sequence[SSAValue]:
        """One block of columns."""
        code, checked = self.code, [] if segment.inside else [0]
        self.column_idx = code.insert(tile.IotaOp(start, self.block_n), "columns")
        side = replace(self.columns, start=start)
        tiles = [
            self.load_matrix(m, self.block_n, side.where, checked)
            for m in self.op.columns
        ]
        self.column_values = [
            self.load_values(v, start, self.block_n, checked)
            for v in self.op.column_values
        ]
        values = self.values(segment, self.dots(tiles), masked)
        new: list[SSAValue] = []
        count = len(self.matrices)
        for (attr, _), acc in zip(self.matrices, state[:count], strict=True):
            new.append(self.add_products(attr, values, tiles, acc))
        for (attr, _), total in zip(self.totals, state[count:], strict=True):
            for (number,) in attr.term_list():
                row_sum = tile.ReduceOp(ReduceKind.SUM, values[number], 1)
                total = self.add(total, code.insert(row_sum, "row_sum"))
            new.append(total)
        self.store_pairs(start, values, checked)
        return new

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

    def add_products(
        self,
        attr: SumAttr,
        values: Sequence[SSAValue],
        columns: Sequence[SSAValue],
        acc: SSAValue,
    ) -> SSAValue:
        """acc + values @ columns, of all terms."""
        for number, column in attr.term_list():
            element = element_of(columns[column].type)
            weights = convert(self.code, values[number], element)
            acc = self.code.insert(tile.DotOp(weights, columns[column], acc), "acc")
        return acc

    # Values of pairs

    def values(
        self,
        segment: SegmentOp,
        dots: Sequence[SSAValue],
        masked: SSAValue | None,
    ) -> list[SSAValue]:
        """What the region yields, 0 for dead pairs."""
        if masked is None:
            return self.region_values(segment, dots, segment.mask_mod)
        values = self.region_values(segment, dots, None)
        then = Block()
        outer, self.code = self.code, ScalarCode(then)
        live = self.masked(segment, values)
        self.code.builder.insert(scf.YieldOp(*live))
        self.code = outer
        otherwise = Block([scf.YieldOp(*values)])
        types = [v.type for v in values]
        branch = scf.IfOp(masked, types, Region(then), Region(otherwise))
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
        self, segment: SegmentOp, dots: Sequence[SSAValue], mask: Region | None
    ) -> list[SSAValue]:
        given: list[Input] = [
            *((dot, FULL) for dot in dots),
            (self.args[self.op.scale], UNIFORM),
            *((v, ROW) for v in self.row_values),
            *((v, COLUMN) for v in self.column_values),
        ]

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            own, pair = list(args[: len(given)]), args[len(given) :]
            mod_args, inside = self.mod_args(code, segment, pair)
            values = inline_region(self.op.pairs, [*own, *mod_args], code)
            live = self.live(code, mask, inside, mod_args)
            return [self.select(code, live, v) for v in values]

        return self.map_of(segment, given, body)

    def masked(self, segment: SegmentOp, values: list[SSAValue]) -> list[SSAValue]:
        """Values of a block that the mask decides of, 0 for dead pairs."""

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            own, pair = args[: len(values)], args[len(values) :]
            mod_args, inside = self.mod_args(code, segment, pair)
            live = self.live(code, segment.mask_mod, inside, mod_args)
            return [self.select(code, live, v) for v in own]

        return self.map_of(segment, [(v, FULL) for v in values], body)

    def map_of(
        self, segment: SegmentOp, given: list[Input], body: Body
    ) -> list[SSAValue]:
        last = self.op.pairs.block.last_op
        assert last is not None
        names = [v.name_hint or "value" for v in last.operands]
        inputs = [*given, *self.pair_inputs()]
        shape = (self.block_m, self.block_n)
        results = build_maps(self.code, shape, inputs, body, names)
        if segment.inside is None:
            guard_captures(results[0])
        return results

    def mod_args(
        self, code: ScalarCode, segment: SegmentOp, pair: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], SSAValue | None]:
        """b, h, q_idx, kv_idx and captures, and whether the pair exists, if asked."""
        row_len, column_len, b, h, row, column, *captured = pair
        inside = None
        if segment.inside is None:
            inside = code.cmp("slt", column, column_len)
        if self.checked and (self.needs_rows or self.trusts_captures):
            if self.needs_rows:
                exists = code.cmp("slt", row, row_len)
                inside = exists if inside is None else code.and_(inside, exists)
            # A captured tensor may have nothing to be read beyond the last row.
            last = code.sub(row_len, code.const(1))
            row = code.insert(arith.MinSIOp(row, last), row.name_hint)
        q_idx, kv_idx = (column, row) if self.op.is_transposed else (row, column)
        return [b, h, q_idx, kv_idx, *captured], inside

    @property
    def needs_rows(self) -> bool:
        """Whether rows beyond the last would count: they are added to others."""
        return bool(self.of_kind(SumKind.DIAGONAL))

    @staticmethod
    def select(code: ScalarCode, live: SSAValue | None, value: SSAValue) -> SSAValue:
        if live is None:
            return value
        return code.select(live, value, code.const(0.0, value.type))

    # Memory

    def tile_shape(self, matrix: SSAValue, rows: int) -> tuple[int, int]:
        least = 16 if self.op.alignment is not None else UNALIGNED_VALUE_DIM
        dim = flex.tensor_shape(matrix)[3]
        return rows, padded_head_dim(self.target, dim, least)

    def load_matrix(
        self,
        matrix: SSAValue,
        rows: int,
        where: Sequence[SSAValue],
        checked: Sequence[int],
    ) -> SSAValue:
        name = f"{matrix.name_hint or 'matrix'}_tile"
        return self.load(matrix, self.tile_shape(matrix, rows), where, checked, name)

    def load_values(
        self, values: SSAValue, start: SSAValue, size: int, checked: Sequence[int]
    ) -> SSAValue:
        """Values of the query's rows, wherever those are."""
        assert isa(values.type, TensorType[Attribute])
        where = [self.place.b, self.place.h, start]
        type_ = TileType(values.type.element_type, [size])
        load = tile.LoadOp(self.args[values], where, checked, type_)
        return self.code.insert(load, values.name_hint)

    def zeros(self, result: SSAValue) -> SSAValue:
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_m))
        zero = self.code.const(0.0, self.op.score_type)
        return self.code.insert(tile.FullOp(zero, type_), "acc")

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
            return code.insert(arith.AddfOp(x, y))

        inputs: list[Input] = [(a, ROW), (b, ROW)]
        return build_map(self.code, (self.block_m,), inputs, body, "total")

    def store_matrix(self, attr: SumAttr, result: SSAValue, acc: SSAValue) -> None:
        code = self.code
        if attr.scaled:
            scale = self.args[self.op.scale]

            def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
                return code.insert(arith.MulfOp(x, y))

            inputs: list[Input] = [(acc, FULL), (scale, UNIFORM)]
            acc = build_map(code, tile.shape_of(acc.type), inputs, body, "scaled")
        assert isa(result.type, TensorType[Attribute])
        rounded = convert(code, acc, result.type.element_type)
        padded = tile.shape_of(acc.type)[1] != flex.tensor_shape(result)[3]
        checked = [*self.checked, *([1] if padded else [])]
        where = [*self.stored.where, code.const(0)]
        code.builder.insert(tile.StoreOp(rounded, self.args[result], where, checked))

    def store_pairs(
        self, start: SSAValue, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        """Write the values of this block of pairs, or add up their diagonals."""
        code = self.code
        for attr, result in self.of_kind(SumKind.PAIRS):
            ((number,),) = attr.term_list()
            dims = [*self.checked, *([1] if checked else [])]
            where = [*self.stored.where, start]
            store = tile.StoreOp(values[number], self.args[result], where, dims)
            code.builder.insert(store)
        for attr, result in self.of_kind(SumKind.DIAGONAL):
            ((number,),) = attr.term_list()
            sums = code.insert(tile.DiagonalsOp(values[number]), "diagonals")
            unit = flex.DIAGONAL_UNIT
            padded = code.mul(code.ceildiv(self.column_len, unit), code.const(unit))
            place = code.sub(self.rows.start, start)
            place = code.add(place, code.sub(padded, code.const(self.block_n)), "at")
            where = [self.stored.b, self.stored.h, self.row_block, place]
            code.builder.insert(tile.AddToOp(sums, self.args[result], where))
