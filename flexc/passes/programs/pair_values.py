"""The values of a block of pairs: dot products, the region over them, dead pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.flex import SumKind
from flexc.dialects.tile import TileType
from flexc.passes.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_maps,
)
from flexc.passes.programs.builder import guard_captures
from flexc.passes.programs.pair_tiles import PairTiles
from flexc.passes.programs.visits import Visit
from flexc.passes.scalar_code import ScalarCode, inline_region

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
