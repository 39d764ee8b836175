"""`list_rows`, `list_blocks` and `order`: fill tables of blocks.

A line is a row of blocks, or a column. The programs of the grid take the rows, `LINES`
at a time, and then the columns if the grid has programs for them. A program loops over
the entries of its lines. A prefix sum of the blocks of a kind is their place in the
line's table: ascending, as torch sorts them.

`order` reads classes from memory. Its tables equal torch's: the live blocks of a line
are followed by all its other blocks, so it counts the live blocks first. `list_blocks`
classifies the blocks itself, without samples, and stores live blocks only, which are
all that attention reads. `list_rows` lists rows only and also summarizes captured
values itself: each program those of all columns. For few columns that costs less than
a launch of `summarize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import i1, i8, i32, i64
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.flex.planning import kernel_builder as plan
from flexc.passes.flex.planning.classes import BlockClasses
from flexc.passes.flex.planning.kernel_builder import (
    PlanKernelBuilder,
    Scalars,
)
from flexc.passes.flex.planning.summarize import SummaryWriter
from flexc.passes.masks.blocks.block_classifier import Classifier
from flexc.passes.scalar.scalar_code import ScalarCode, counted_loop
from flexc.passes.tile.map_builder import COLUMN, FULL, ROW, Input

LINES, ENTRIES = 4, 128
"""The lines that a program takes, and the entries that one step of its loop takes."""

SUMMARIZED = 32
"""The entries that a step takes if it summarizes them."""

KINDS = ("partial", "full")
"""The kinds of live blocks, each with a table. Unknown blocks count as partial."""

ALIGNMENT = 4
"""The alignment of each table in i32 elements, which is 16 bytes."""

ClassOf = Callable[[ScalarCode, Scalars, Sequence[SSAValue]], SSAValue]
"""A function that writes the class of the existing block (m, n), given scalars and
captures.
"""


class TableSizes(NamedTuple):
    """The sizes of the classes, as scalars of a kernel."""

    batches: SSAValue
    heads: SSAValue
    rows: SSAValue
    columns: SSAValue


class TableBuilder:
    """A builder of a kernel that fills tables of rows and of columns.

    The memory of the tables has the counts and then the indices of each kind, of rows
    and then of columns; see `TablesLayout` of the runtime.
    """

    def __init__(
        self,
        program: PlanKernelBuilder,
        sizes: TableSizes,
        memory: SSAValue,
        class_of: ClassOf,
        with_dead: bool = False,
        step: int = ENTRIES,
    ):
        self.step = step
        """The entries that one step takes."""
        self.program = program
        self.sizes = sizes
        self.memory = memory
        self.class_of = class_of
        self.with_dead = with_dead

    @property
    def code(self) -> ScalarCode:
        return self.program.code

    def build(self) -> tile.KernelOp:
        code = self.code
        by_column = self.find_lines()
        lines = {"first": self.first, "lines": self.lines, "entries": self.entries}
        self.program.uniform |= lines | {"by_column": by_column}
        steps = code.ceildiv(self.entries, self.step, "steps")
        none = tile.FullOp(code.const(0), TileType(i32, [LINES]))
        zeros = [code.insert(none, "none")] * len(KINDS)
        counts, indices = self.places(by_column)
        totals: Sequence[SSAValue] = ()
        if self.with_dead:
            totals = counted_loop(self.program, steps, zeros, self.count, ["i", *KINDS])

        def place(i: SSAValue, seen: Sequence[SSAValue]) -> list[SSAValue]:
            return self.place(i, seen, totals, indices)

        seen = counted_loop(self.program, steps, zeros, place, ["i", *KINDS])
        self.store_counts(seen, counts)
        return self.program.finish()

    def find_lines(self) -> SSAValue:
        """Find the first line of the program. Return if its lines are columns."""
        code, (_, _, rows, columns) = self.code, self.sizes
        tiles, number = code.ceildiv(rows, LINES, "row_tiles"), self.program.program
        by_column = code.cmp("sge", number, tiles)
        before = code.select(by_column, tiles, code.const(0))
        self.first = code.mul(code.sub(number, before), code.const(LINES), "first_line")
        self.lines = code.select(by_column, columns, rows)
        self.entries = code.select(by_column, rows, columns)
        return by_column

    def summaries(self, entry: SSAValue) -> dict[str, Input]:
        """Return the summaries of the lines and of a step's entries, by name."""
        return {}

    def places(self, by_column: SSAValue) -> tuple[list[SSAValue], list[SSAValue]]:
        """Return the places of the first line's counts and of its indices, by kind."""
        code = self.code
        wide = (*self.sizes, self.lines, self.entries, self.first)
        batches, heads, rows, columns, lines, entries, first = (
            code.int_cast(v, i64) for v in wide
        )
        b, h = (code.int_cast(v, i64) for v in (self.program.b, self.program.h))
        both = code.mul(batches, heads)
        numbers = self.aligned(code.mul(both, lines))
        cells = self.aligned(code.mul(code.mul(both, rows), columns))
        of_rows = code.add(self.aligned(code.mul(both, rows)), cells)
        start = code.mul(of_rows, code.const(len(KINDS), i64))
        start = code.select(by_column, start, code.const(0, i64))
        line = code.add(code.mul(b, heads), h)
        line = code.add(code.mul(line, lines), first, "line")
        counts: list[SSAValue] = []
        indices: list[SSAValue] = []
        for _ in KINDS:
            counts.append(code.add(start, line, "counts"))
            start = code.add(start, numbers)
            indices.append(code.add(start, code.mul(line, entries), "indices"))
            start = code.add(start, cells)
        return counts, indices

    def aligned(self, size: SSAValue) -> SSAValue:
        code, unit = self.code, self.code.const(ALIGNMENT, i64)
        rounded = code.add(size, code.const(ALIGNMENT - 1, i64))
        return code.mul(code.div(rounded, unit), unit)

    def kinds(self, i: SSAValue) -> tuple[SSAValue, list[SSAValue]]:
        """Return the entries of a step, and for each kind flags of its blocks."""
        code = self.code
        start = code.mul(i, code.const(self.step))
        entry = code.insert(tile.IotaOp(start, self.step), "entry")
        line = code.insert(tile.IotaOp(self.first, LINES), "line")

        def body(
            code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
        ) -> list[SSAValue]:
            line = plan.existing(code, at["line"], at["lines"])
            entry = plan.existing(code, at["entry"], at["entries"])
            m = code.select(at["by_column"], entry, line)
            n = code.select(at["by_column"], line, entry)
            kind = self.class_of(code, {**at, "m": m, "n": n}, captures)
            is_partial, is_unknown, is_full = (
                code.cmp("eq", kind, code.const(value, i8))
                for value in (plan.PARTIAL, plan.UNKNOWN, plan.FULL)
            )
            exists = self.exists(code, at)
            flags = (code.or_(is_partial, is_unknown), is_full)
            return [code.int_cast(code.and_(exists, flag), i32) for flag in flags]

        varying: dict[str, Input] = {"line": (line, ROW), "entry": (entry, COLUMN)}
        varying |= self.summaries(entry)
        return entry, self.program.map([LINES, self.step], varying, body, KINDS)

    @staticmethod
    def exists(code: ScalarCode, at: Scalars) -> SSAValue:
        """Return the condition that an entry of a line exists."""
        inside = code.cmp("slt", at["line"], at["lines"])
        return code.and_(inside, code.cmp("slt", at["entry"], at["entries"]))

    def count(self, i: SSAValue, seen: Sequence[SSAValue]) -> list[SSAValue]:
        """Write a step that counts live blocks; return the new counts."""
        return self.counted(self.kinds(i)[1], seen)

    def counted(
        self, kinds: Sequence[SSAValue], seen: Sequence[SSAValue]
    ) -> list[SSAValue]:
        def total(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            return [code.add(at["seen"], at["new"])]

        found: list[SSAValue] = []
        for name, kind, old in zip(KINDS, kinds, seen, strict=True):
            new = self.code.insert(tile.ReduceOp(ReduceKind.SUM, kind, 1), "new")
            varying = {"seen": (old, ROW), "new": (new, ROW)}
            found += self.program.map([LINES], varying, total, [name])
        return found

    def place(
        self,
        i: SSAValue,
        seen: Sequence[SSAValue],
        totals: Sequence[SSAValue],
        indices: Sequence[SSAValue],
    ) -> list[SSAValue]:
        """Write a step that stores indices; return the counts of live blocks so far."""
        entry, kinds = self.kinds(i)
        for k, kind in enumerate(kinds):
            upto = self.code.insert(tile.ScanOp(kind), "upto")
            line = self.code.insert(tile.IotaOp(self.first, LINES), "line")
            varying = {
                "line": (line, ROW),
                "entry": (entry, COLUMN),
                "live": (kind, FULL),
                "upto": (upto, FULL),
                "seen": (seen[k], ROW),
            }
            if totals:
                varying["total"] = (totals[k], ROW)
            names = ["index", "offset", "stored"]
            shape = [LINES, self.step]
            value, offset, mask = self.program.map(shape, varying, self.placed, names)
            scatter = tile.ScatterOp(value, self.memory, indices[k], offset, mask)
            self.code.builder.insert(scatter)
        return self.counted(kinds, seen)

    def placed(
        self, code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Return an index, its place beyond the first line's, and if it is stored."""
        live = code.cmp("ne", at["live"], code.const(0))
        before = code.add(at["seen"], code.sub(at["upto"], at["live"]))
        stored = live
        if self.with_dead:
            dead = code.add(at["total"], code.sub(at["entry"], before))
            before = code.select(live, before, dead)
            stored = self.exists(code, at)
        row = code.mul(code.sub(at["line"], at["first"]), at["entries"])
        return [at["entry"], code.add(row, before), stored]

    def store_counts(
        self, counts: Sequence[SSAValue], places: Sequence[SSAValue]
    ) -> None:
        code = self.code
        line = code.insert(tile.IotaOp(self.first, LINES), "line")

        def body(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            inside = code.cmp("slt", at["line"], at["lines"])
            return [code.sub(at["line"], at["first"]), inside]

        names = ["offset", "stored"]
        offset, stored = self.program.map([LINES], {"line": (line, ROW)}, body, names)
        for count, place in zip(counts, places, strict=True):
            scatter = tile.ScatterOp(count, self.memory, place, offset, stored)
            code.builder.insert(scatter)


class RowTableBuilder(TableBuilder):
    """A builder of a kernel that summarizes captured values and lists rows."""

    def __init__(
        self,
        program: PlanKernelBuilder,
        memory: SSAValue,
        classes: BlockClasses,
    ):
        sizes = sizes_of(program)
        super().__init__(program, sizes, memory, classes, step=SUMMARIZED)
        self.classes = classes

    def find_lines(self) -> SSAValue:
        code, (_, _, self.lines, self.entries) = self.code, self.sizes
        self.first = code.mul(self.program.program, code.const(LINES), "first_line")
        line = code.insert(tile.IotaOp(self.first, LINES), "line")
        self.of_lines = self.summarized(line, "row")
        return code.const(0, i1)

    def summaries(self, entry: SSAValue) -> dict[str, Input]:
        of_entries = self.summarized(entry, "column")
        found: dict[str, Input] = {n: (v, ROW) for n, v in self.of_lines.items()}
        return found | {n: (v, COLUMN) for n, v in of_entries.items()}

    def summarized(self, blocks: SSAValue, axis: str) -> dict[str, SSAValue]:
        """Write loops over the positions of blocks; return their summaries by name."""
        classifier, found = self.classes.classifier, dict[str, SSAValue]()
        for i, summary in enumerate(() if classifier is None else classifier.summaries):
            if summary.axis == axis:
                own = [o for o in self.classes.outputs if o.index == i]
                values = SummaryWriter(self.program, summary, own, blocks).run()
                found |= zip((o.name for o in own), values, strict=True)
        return found


def sizes_of(program: PlanKernelBuilder) -> TableSizes:
    """Return the numbers of batches, heads, rows and columns that a plan takes."""
    names = ("batches", "heads", "q_blocks", "kv_blocks")
    return TableSizes(*(program.uniform[name] for name in names))


def build_list_rows(mask: Region, classifier: Classifier | None) -> tile.KernelOp:
    """Return the kernel that lists the live blocks of rows, by itself."""
    program = PlanKernelBuilder("list_rows", mask)
    classes = BlockClasses(program, mask, classifier, samples=False)
    return RowTableBuilder(program, program.tables(0), classes).build()


def build_list_blocks(mask: Region, classifier: Classifier | None) -> tile.KernelOp:
    """Return the kernel that lists the live blocks of rows, and of columns."""
    program = PlanKernelBuilder("list_blocks", mask)
    classes = BlockClasses(program, mask, classifier, samples=False)
    classes.read_summaries(program)
    memory = program.tables(2 + len(classes.outputs))
    return TableBuilder(program, sizes_of(program), memory, classes).build()


def build_order() -> tile.KernelOp:
    """Return the kernel that fills torch's tables from the classes in memory."""
    program = PlanKernelBuilder("order", None)
    classes = program.uniform["classes"] = program.classes(written=False)
    memory = program.tables(1)
    dims = (program.code.insert(tile.DimOp(classes, dim)) for dim in range(4))

    def class_of(code: ScalarCode, at: Scalars, _: Sequence[SSAValue]) -> SSAValue:
        place = [at[name] for name in ("b", "h", "m", "n")]
        return code.insert(flex.LoadCaptureOp(at["classes"], place, inside=True))

    return TableBuilder(
        program, TableSizes(*dims), memory, class_of, with_dead=True
    ).build()
