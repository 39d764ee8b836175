"""`classify`, `sample` and `refine`: find the class of every block.

A `classify` program takes a tile of blocks, `TILE_ROWS` by `TILE_COLUMNS`. The
classifier proves blocks dead or full. Samples prove blocks partial: such a block has
both a live and a dead pair. A block without a proof is unknown and sets the flag of its
row of the tile. A GPU samples all blocks as it classifies them, which saves a launch. A
CPU samples only the unknown blocks afterwards.

A `refine` program takes one row of a tile and does nothing unless its flag is set. The
program evaluates every pair of the unknown blocks and overwrites their classes in
place: no other program reads or writes these classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i8, i32
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.dialects.tile.types import is_tensor
from flexc.passes.flex.planning import kernel_builder as plan
from flexc.passes.flex.planning.kernel_builder import (
    TILE_COLUMNS,
    TILE_ROWS,
    PlanKernelBuilder,
    Scalars,
    existing,
    flagged_tile,
    mask_at,
    proved_partial,
    read,
    span_of,
    whole,
)
from flexc.passes.flex.planning.summarize import (
    SummaryOutput,
    narrowed,
    outputs_of,
)
from flexc.passes.masks.blocks.block_classifier import Classifier
from flexc.passes.scalar.scalar_code import ScalarCode, counted_loop, inline_region
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
)


def still_unknown(code: ScalarCode, kind: SSAValue, at: Scalars) -> SSAValue:
    """Return 1 if a block exists and is unknown, else 0."""
    unknown = code.cmp("eq", kind, code.const(plan.UNKNOWN, i8))
    exists = code.cmp("slt", at["n"], at["kv_blocks"])
    return code.int_cast(code.and_(unknown, exists), i32)


class BlockClasses:
    """A writer of the class of an existing block, as far as the classifier proves it.

    Without a classifier only samples prove classes. The summaries that the classifier
    needs are among the scalars: as tensors, if the kernel reads them, or as values.
    """

    def __init__(
        self,
        program: PlanKernelBuilder,
        mask: Region,
        classifier: Classifier | None,
        samples: bool,
    ):
        self.mask = mask
        self.classifier = classifier
        self.samples = samples
        self.outputs = [] if classifier is None else outputs_of(classifier.summaries)
        for axis in ("q", "kv"):
            program.uniform[f"{axis}_blocks"] = program.blocks(axis)

    def read_summaries(self, program: PlanKernelBuilder) -> None:
        """Add the summaries as arguments of the kernel."""
        for i, output in enumerate(self.outputs):
            tensor = program.summary(i, output.name, output.stored, written=False)
            program.uniform[output.name] = tensor

    def __call__(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> SSAValue:
        kinds = [code.const(kind, i8) for kind in range(4)]
        kind = kinds[plan.UNKNOWN]
        if self.samples:
            partial = proved_partial(self.mask, code, at, captures)
            kind = code.select(partial, kinds[plan.PARTIAL], kind)
        if self.classifier is not None:
            q, kv = span_of(code, at["m"], at, "q"), span_of(code, at["n"], at, "kv")
            args = [at["b"], at["h"], q.first, q.last, kv.first, kv.last, *captures]
            args += [self.summary(code, at, output) for output in self.outputs]
            dead, full = inline_region(self.classifier.region, args, code)
            full = code.and_(full, whole(code, at))
            kind = code.select(full, kinds[plan.FULL], kind)
            kind = code.select(dead, kinds[plan.DEAD], kind)
        return kind

    @staticmethod
    def summary(code: ScalarCode, at: Scalars, output: SummaryOutput) -> SSAValue:
        """Return a summary of the block's row or column."""
        value = at[output.name]
        if is_tensor(value.type):
            place = [at["b"], at["h"], at["m" if output.axis == "row" else "n"]]
            load = flex.LoadCaptureOp(value, place, inside=True)
            value = code.insert(load, output.name)
        return narrowed(code, value, output.type)


class ClassifyBuilder:
    """A builder of `classify`."""

    def __init__(self, mask: Region, classifier: Classifier | None, samples: bool):
        self.program = PlanKernelBuilder("classify", mask)
        self.class_of = BlockClasses(self.program, mask, classifier, samples)
        self.class_of.read_summaries(self.program)

    def build(self) -> tile.KernelOp:
        code, program = self.program.code, self.program
        across = program.uniform["kv_blocks"]
        tiles = code.ceildiv(across, TILE_COLUMNS, "column_tiles")
        column_tile = code.rem(program.program, tiles, "column_tile")
        row_tile = code.div(program.program, tiles)
        row = code.mul(row_tile, code.const(TILE_ROWS), "row")
        column = code.mul(column_tile, code.const(TILE_COLUMNS), "column")
        first = code.add(row, program.uniform["first_row"], "block_row")
        rows = code.insert(tile.IotaOp(first, TILE_ROWS), "m")
        columns = code.insert(tile.IotaOp(column, TILE_COLUMNS), "n")
        varying: dict[str, Input] = {"m": (rows, ROW), "n": (columns, COLUMN)}
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

    def body(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        m = existing(code, at["m"], at["q_blocks"])
        n = existing(code, at["n"], at["kv_blocks"])
        kind = self.class_of(code, {**at, "m": m, "n": n}, captures)
        return [kind, still_unknown(code, kind, at)]


def build_classify(
    mask: Region, classifier: Classifier | None, samples: bool
) -> tile.KernelOp:
    """Return the kernel that fills `classes` and `flags`, with samples or without."""
    return ClassifyBuilder(mask, classifier, samples).build()


def build_sample(mask: Region) -> tile.KernelOp:
    """Return the kernel that samples unknown blocks and updates flags.

    A program takes one row of a tile. Its loop runs one step if the flag of the row is
    set, and none otherwise.
    """
    program = PlanKernelBuilder("sample", mask)
    classes, out = program.classes(written=False), program.classes(written=True)
    place, flags = flagged_tile(program), program.flags(written=True)
    program.uniform["kv_blocks"] = program.blocks("kv")
    shape = [1, TILE_COLUMNS]

    def body(
        code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        partial = proved_partial(mask, code, at, captures)
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

    counted_loop(program, place.flag, [], look)
    return program.finish()


PAIR_ROWS, PAIR_COLUMNS = 32, 128
"""The rows and columns of pairs that one step evaluates."""

FOUND = ("live", "dead")
"""Names of loop state: 1 if such a pair was found, with an element for each column."""


class RefineBuilder:
    """A builder of `refine`."""

    def __init__(self, mask: Region):
        self.program = PlanKernelBuilder("refine", mask)
        self.mask = mask
        self.classes = self.program.classes(written=False)
        self.out = self.program.classes(written=True)

    @property
    def code(self) -> ScalarCode:
        return self.program.code

    def build(self) -> tile.KernelOp:
        """Write a loop over a tile's row of blocks, with no step if none is unknown."""
        code, columns = self.code, self.program.blocks("kv")
        place = flagged_tile(self.program)
        self.row, self.m = place.row, place.m
        left = code.sub(columns, place.column)
        count = code.min(left, code.const(TILE_COLUMNS))
        count = code.mul(count, place.flag, "count")

        def one(i: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            return self.block(self.code.add(place.column, i, "n"))

        counted_loop(self.program, count, [], one)
        return self.program.finish()

    def block(self, column: SSAValue) -> list[SSAValue]:
        """Write the code that finds and stores the class of an unknown block."""
        code, uniform = self.code, self.program.uniform
        where = [self.program.b, self.program.h, self.row, column]
        kind = read(self.program, self.classes, where, "kind")
        unknown = code.cmp("eq", kind, code.const(plan.UNKNOWN, i8))
        rows = code.ceildiv(uniform["q_block"], PAIR_ROWS)
        rows = code.select(unknown, rows, code.const(0))
        steps = code.ceildiv(uniform["kv_block"], PAIR_COLUMNS, "steps")
        zero, type_ = code.const(0), TileType(i32, [PAIR_COLUMNS])
        state = [code.insert(tile.FullOp(zero, type_), name) for name in FOUND]
        names = ["i", *FOUND]

        def along_rows(i: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            def along_columns(k: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
                return self.step(column, i, k, state)

            return counted_loop(self.program, steps, state, along_columns, names)

        found = counted_loop(self.program, rows, state, along_rows, names)
        found = [self.any_of(v) for v in found]
        store = tile.StoreOp(self.refined(kind, column, found), self.out, where, [])
        self.code.builder.insert(store)
        return []

    def step(
        self, column: SSAValue, i: SSAValue, k: SSAValue, state: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Write the code that looks for live and dead pairs in a tile of pairs."""
        code = self.code
        first_row = code.mul(i, code.const(PAIR_ROWS))
        first_column = code.mul(k, code.const(PAIR_COLUMNS))
        rows = code.insert(tile.IotaOp(first_row, PAIR_ROWS), "row")
        columns = code.insert(tile.IotaOp(first_column, PAIR_COLUMNS), "column")
        varying = {
            "q": (rows, ROW),
            "kv": (columns, COLUMN),
            "q_index": (self.m, UNIFORM),
            "kv_index": (column, UNIFORM),
        }
        shape = [PAIR_ROWS, PAIR_COLUMNS]
        parts = self.program.map(shape, varying, self.pairs, FOUND)
        results: list[SSAValue] = []
        for name, part, old in zip(FOUND, parts, state, strict=True):
            new = code.insert(tile.ReduceOp(ReduceKind.MAX, part, 0), name)

            def either(
                code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
            ) -> list[SSAValue]:
                return [code.insert(arith.OrIOp(at["old"], at["new"]))]

            varying = {"old": (old, ROW), "new": (new, ROW)}
            results += self.program.map([PAIR_COLUMNS], varying, either, [name])
        return results

    def pairs(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Write two conditions: the pair exists and is live, or exists and is dead."""
        pair: list[SSAValue] = []
        exists = None
        for axis in ("q", "kv"):
            size, length = at[f"{axis}_block"], at[f"{axis}_len"]
            start = code.mul(at[f"{axis}_index"], size)
            index = code.add(start, at[axis], f"{axis}_idx")
            inside = code.and_(
                code.cmp("slt", at[axis], size), code.cmp("slt", index, length)
            )
            exists = inside if exists is None else code.and_(exists, inside)
            last = code.sub(length, code.const(1))
            pair.append(code.min(index, last, index.name_hint))
        assert exists is not None
        live = mask_at(self.mask, code, at, (pair[0], pair[1]), captures)
        dead = code.not_(live)
        return [code.int_cast(code.and_(exists, v), i32) for v in (live, dead)]

    def any_of(self, found: SSAValue) -> SSAValue:
        """Return a tile of one element: 1 if any column has 1, else 0."""

        def same(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            return [code.add(at["found"], code.const(0))]

        shape = [1, PAIR_COLUMNS]
        (wide,) = self.program.map(shape, {"found": (found, COLUMN)}, same, ["found"])
        return self.code.insert(tile.ReduceOp(ReduceKind.MAX, wide, 1), "found")

    def refined(
        self, kind: SSAValue, column: SSAValue, found: Sequence[SSAValue]
    ) -> SSAValue:
        """Return the class of a block, as a tile of one element."""

        def body(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            kinds = [code.const(kind, i8) for kind in range(4)]
            live, dead = (code.cmp("ne", at[n], code.const(0)) for n in FOUND)
            broken = code.or_(dead, code.not_(whole(code, at)))
            exact = code.select(broken, kinds[plan.PARTIAL], kinds[plan.FULL])
            exact = code.select(live, exact, kinds[plan.DEAD])
            unknown = code.cmp("eq", at["kind"], kinds[plan.UNKNOWN])
            return [code.select(unknown, exact, at["kind"])]

        varying = dict(zip(FOUND, ((v, ROW) for v in found), strict=True))
        varying |= {
            "kind": (kind, UNIFORM),
            "m": (self.m, UNIFORM),
            "n": (column, UNIFORM),
        }
        (result,) = self.program.map([1], varying, body, ["kind"])
        return result


def build_refine(mask: Region) -> tile.KernelOp:
    """Return the kernel that evaluates all pairs of unknown blocks."""
    return RefineBuilder(mask).build()
