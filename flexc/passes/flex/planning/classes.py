"""`classify` and `sample`: classes of blocks, from the classifier and from samples.

A program takes a tile of blocks, `TILE_ROWS` by `TILE_COLUMNS`. The classifier's
answers are proofs; so is a sample, of the contrary. A block of which both a live and
a dead pair are known is partial; one of which too little is known is unknown.

A GPU takes samples of all blocks as it classifies them, which saves a launch; a CPU
afterwards and of those only that are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import i8, i32
from xdsl.ir import Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.flex.planning import program as plan
from flexc.passes.flex.planning.control import flagged_tile, loop
from flexc.passes.flex.planning.program import (
    TILE_COLUMNS,
    TILE_ROWS,
    Program,
    Scalars,
)
from flexc.passes.flex.planning.samples import (
    span_of,
    surely_partial,
    whole,
)
from flexc.passes.flex.planning.summaries import (
    extremes,
    narrowed,
    summary_tensors,
)
from flexc.passes.masks.blocks.block_classifier import Classifier, Summary
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    Input,
)

NO_SUMMARIES: tuple[Summary, ...] = ()


def still_unknown(code: ScalarCode, kind: SSAValue, at: Scalars) -> SSAValue:
    """1 if a block that exists is unknown, else 0."""
    unknown = code.cmp("eq", kind, code.const(plan.UNKNOWN, i8))
    exists = code.cmp("slt", at["n"], at["kv_blocks"])
    return code.int_cast(code.and_(unknown, exists), i32)


class ClassifyBuilder:
    """Builds the kernel; without a classifier only samples speak."""

    def __init__(self, mask: Region, classifier: Classifier | None, samples: bool):
        self.samples = samples
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
        kinds = [code.const(kind, i8) for kind in range(4)]
        kind = kinds[plan.UNKNOWN]
        if self.samples:
            partial = surely_partial(self.mask, code, at, captures)
            kind = code.select(partial, kinds[plan.PARTIAL], kind)
        if self.classifier is not None:
            spans = [q.first, q.last, kv.first, kv.last]
            args = [at["b"], at["h"], *spans, *captures]
            args += self.summary_values(code, at)
            dead, full = inline_region(self.classifier.region, args, code)
            full = code.and_(full, whole(code, at))
            kind = code.select(full, kinds[plan.FULL], kind)
            kind = code.select(dead, kinds[plan.DEAD], kind)
        return [kind, still_unknown(code, kind, at)]

    def summary_values(self, code: ScalarCode, at: Scalars) -> list[SSAValue]:
        """The summaries as the classifier takes them."""
        types = [e.type for s in self.summaries for e in extremes(s)]
        tensors = summary_tensors(self.summaries)
        return [
            narrowed(code, at[what.name], type_)
            for what, type_ in zip(tensors, types, strict=True)
        ]


def build_classify(
    mask: Region, classifier: Classifier | None, samples: bool
) -> tile.KernelOp:
    """The kernel that fills `classes` and `flags`, with samples or without."""
    return ClassifyBuilder(mask, classifier, samples).build()


def build_sample(mask: Region) -> tile.KernelOp:
    """The kernel that looks at samples of what is unknown, and lowers flags.

    A program takes one row of a tile, in a loop of one step if its flag is raised and
    of none if not.
    """
    program = Program("sample", mask)
    classes, out = program.classes(written=False), program.classes(written=True)
    place, flags = flagged_tile(program), program.flags(written=True)
    program.uniform["kv_blocks"] = program.blocks("kv")
    shape = [1, TILE_COLUMNS]

    def body(
        code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        partial = surely_partial(mask, code, at, captures)
        unknown = code.cmp("eq", at["kind"], code.const(plan.UNKNOWN, i8))
        kind = code.select(
            code.and_(unknown, partial), code.const(plan.PARTIAL, i8), at["kind"]
        )
        return [kind, still_unknown(code, kind, at)]

    def look(_: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        code, where = program.code, [program.b, program.h]
        rows = code.insert(tile.IotaOp(place.m, 1), "m")
        columns = code.insert(tile.IotaOp(place.column, TILE_COLUMNS), "n")
        blocks = [*where, place.row, place.column]
        load = tile.LoadOp(classes, blocks, [1], TileType(i8, shape))
        kinds = code.insert(load, "kind")
        varying = {"m": (rows, ROW), "n": (columns, COLUMN), "kind": (kinds, FULL)}
        kind, unknown = program.map(shape, varying, body, ["kind", "unknown"])
        code.builder.insert(tile.StoreOp(kind, out, blocks, [1]))
        flag = code.insert(tile.ReduceOp(ReduceKind.MAX, unknown, 1), "flag")
        where += [place.column_tile, place.row]
        code.builder.insert(tile.StoreOp(flag, flags, where, []))
        return []

    loop(program, place.flag, [], look)
    return program.finish()
