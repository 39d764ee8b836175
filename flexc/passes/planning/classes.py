"""`classify`: the class of every block, from the classifier and from samples.

A program takes a tile of blocks, `TILE_ROWS` by `TILE_COLUMNS`. The classifier's
answers are proofs; so is a sample, of the contrary. A block of which both a live and
a dead pair are known is partial; one of which too little is known is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1, i8, i32
from xdsl.ir import Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.analysis.block_classifier import Classifier, Summary
from flexc.passes.map_builder import COLUMN, ROW, Input
from flexc.passes.planning import program as plan
from flexc.passes.planning.program import (
    TILE_COLUMNS,
    TILE_ROWS,
    Program,
    Scalars,
    mask_at,
)
from flexc.passes.planning.samples import sample_pairs, span_of
from flexc.passes.planning.summaries import extremes, narrowed, summary_tensors
from flexc.passes.scalar_code import ScalarCode, inline_region

NO_SUMMARIES: tuple[Summary, ...] = ()


class ClassifyBuilder:
    """Builds the kernel; without a classifier only samples speak."""

    def __init__(self, mask: Region, classifier: Classifier | None):
        self.program = Program("classify", mask)
        self.mask = mask
        self.classifier = classifier
        self.summaries = NO_SUMMARIES if classifier is None else classifier.summaries

    def build(self) -> tile.KernelOp:
        code, program = self.program.code, self.program
        tiles = code.ceildiv(program.blocks("kv"), TILE_COLUMNS, "column_tiles")
        column_tile = code.rem(program.program, tiles, "column_tile")
        row_tile = code.div(program.program, tiles)
        row = code.mul(row_tile, code.const(TILE_ROWS), "row")
        column = code.mul(column_tile, code.const(TILE_COLUMNS), "column")
        first = code.add(row, program.uniform["first_row"], "block_row")
        rows = code.insert(tile.IotaOp(first, TILE_ROWS), "m")
        columns = code.insert(tile.IotaOp(column, TILE_COLUMNS), "n")
        varying: dict[str, Input] = {"m": (rows, ROW), "n": (columns, COLUMN)}
        varying |= self.loaded(first, column)
        program.uniform["kv_blocks"] = program.blocks("kv")
        shape = [TILE_ROWS, TILE_COLUMNS]
        names = ["class", "unknown"]
        classes, unknown = program.map(shape, varying, self.body, names)
        where = [program.b, program.h]
        store = tile.StoreOp(
            classes, program.classes(written=True), [*where, row, column], [0, 1]
        )
        code.builder.insert(store)
        flags = code.insert(tile.ReduceOp(ReduceKind.MAX, unknown, 1), "flag")
        where += [column_tile, row]
        store = tile.StoreOp(flags, program.flags(written=True), where, [0])
        code.builder.insert(store)
        return program.finish()

    def loaded(self, row: SSAValue, column: SSAValue) -> dict[str, Input]:
        """Tiles of the summaries, by name."""
        code, tensors = self.program.code, iter(self.tensors())
        varying: dict[str, Input] = {}
        for summary in self.summaries:
            is_row = summary.axis == "row"
            start, size = (row, TILE_ROWS) if is_row else (column, TILE_COLUMNS)
            for _ in extremes(summary):
                what, tensor = next(tensors)
                where = [self.program.b, self.program.h, start]
                type_ = TileType(what.element, [size])
                load = tile.LoadOp(tensor, where, [0], type_)
                value = code.insert(load, what.name)
                varying[what.name] = (value, ROW if is_row else COLUMN)
        return varying

    def tensors(self) -> Iterator[tuple[plan.SummaryTensor, SSAValue]]:
        for i, what in enumerate(summary_tensors(self.summaries)):
            yield what, self.program.summary(i, what, written=False)

    def body(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        q = span_of(code, at["m"], at, "q")
        kv = span_of(code, at["n"], at, "kv")
        alive = broken = None
        for pair in sample_pairs(code, q, kv):
            live = mask_at(self.mask, code, at, pair, captures)
            dead = code.insert(arith.XOrIOp(live, code.const(1, i1)))
            alive = live if alive is None else code.insert(arith.OrIOp(alive, live))
            broken = dead if broken is None else code.insert(arith.OrIOp(broken, dead))
        assert alive is not None
        assert broken is not None
        whole = code.and_(
            code.cmp("slt", at["m"], at["q_whole"]),
            code.cmp("slt", at["n"], at["kv_whole"]),
        )
        ragged = code.insert(arith.XOrIOp(whole, code.const(1, i1)))
        broken = code.insert(arith.OrIOp(broken, ragged))
        kinds = [code.const(kind, i8) for kind in range(4)]
        kind = code.select(
            code.and_(alive, broken), kinds[plan.PARTIAL], kinds[plan.UNKNOWN]
        )
        if self.classifier is not None:
            spans = [q.first, q.last, kv.first, kv.last]
            args = [at["b"], at["h"], *spans, *captures]
            args += self.summary_values(code, at)
            dead, full = inline_region(self.classifier.region, args, code)
            kind = code.select(code.and_(full, whole), kinds[plan.FULL], kind)
            kind = code.select(dead, kinds[plan.DEAD], kind)
        unknown = code.cmp("eq", kind, kinds[plan.UNKNOWN])
        exists = code.cmp("slt", at["n"], at["kv_blocks"])
        return [kind, code.int_cast(code.and_(unknown, exists), i32)]

    def summary_values(self, code: ScalarCode, at: Scalars) -> list[SSAValue]:
        """The summaries as the classifier takes them."""
        types = [e.type for s in self.summaries for e in extremes(s)]
        tensors = summary_tensors(self.summaries)
        return [
            narrowed(code, at[what.name], type_)
            for what, type_ in zip(tensors, types, strict=True)
        ]


def build_classify(mask: Region, classifier: Classifier | None) -> tile.KernelOp:
    """The kernel that fills `classes` and `flags`."""
    return ClassifyBuilder(mask, classifier).build()
