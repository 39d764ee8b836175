"""Print maps of tiles as C++: loops over vectors of columns, and over rows.

`tile-assign-loops` says where each value of a map's region is computed. A loop
iteration takes a few vectors of columns, whose computations overlap, and runs over all
rows of them, so that reductions over rows stay in registers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, StringAttr, i1
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from flexc.codegen.cpp.scalar_rules import SCALAR_RULES, Rule
from flexc.codegen.cpp.spelling import (
    from_memory,
    literal,
    scalar_type,
    to_memory,
    vector_type,
)
from flexc.codegen.source_printer import SourcePrinter
from flexc.dialects import flex, tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import LOOPS, Loop, ReduceKind
from flexc.errors import refuse
from flexc.passes.cpu.tile_panel_maps import is_constant
from flexc.passes.tile.map_builder import is_wide

COMBINE = {ReduceKind.MAX: "Max", ReduceKind.MIN: "Min", ReduceKind.SUM: "Sum"}
STEP_ROWS = 8
"""The rows of a map between two shares of the steps of a product beside it."""
MOST_UNROLLED = 64
"""The number of ops of a map whose loops are unrolled.

Copies of more ops compile slowly, and their values do not stay in registers.
"""
MOST_LANES = 16
"""A number of columns that is a multiple of this has whole vectors on any machine."""

_MIXED = (
    arith.AddiOp,
    arith.SubiOp,
    arith.MuliOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.DivfOp,
    arith.CmpiOp,
    arith.CmpfOp,
)
"""Ops that print as C++ operators on vectors and scalars of 32 bits or more."""

_BY_NUMBERS = (
    arith.DivSIOp,
    arith.DivUIOp,
    arith.FloorDivSIOp,
    arith.CeilDivSIOp,
    arith.CeilDivUIOp,
    arith.RemSIOp,
    arith.RemUIOp,
)
"""Ops that print as functions with an overload for a scalar divisor."""

ORDERED, UNORDERED = 7, 14
"""Predicates of `arith.cmpf` that test each operand alone."""


@dataclass(frozen=True)
class MapPlan:
    """A map of one or two dimensions, and the loops in which it computes its values.

    A map of one dimension has columns only.
    """

    op: tile.MapOp | tile.PanelMapOp
    rows: str | None
    """The number of rows as C++ text, or None for a map of one dimension."""
    outcomes: tuple[ReduceKind | None, ...]

    @cached_property
    def loops(self) -> dict[SSAValue, Loop]:
        """The loops in which each value of the region is computed."""
        known, args = self.op.attributes.get(LOOPS), self.op.body.block.args
        values = [*args, *(op.results[0] for op in self.computed())]
        loops = (
            [Loop(a.data) for a in known] if isa(known, ArrayAttr[StringAttr]) else []
        )
        if len(loops) != len(values):
            refuse(self.op, "expects loops of its values: run tile-assign-loops first")
        return dict(zip(values, loops, strict=True))

    @cached_property
    def packs(self) -> list[bool]:
        """True for each result that is packed in pairs."""
        op = self.op
        count = range(len(op.results))
        return [isinstance(op, tile.PanelMapOp) and op.is_packed(i) for i in count]

    def results(self) -> list[tuple[SSAValue, ReduceKind | None, SSAValue]]:
        """Return each result, the reduction of its rows, and the yielded value."""
        values = yielded(self.op.body.block)
        return list(zip(self.op.results, self.outcomes, values, strict=True))

    def computed(self, *loops: Loop) -> list[Operation]:
        """Return the ops of some loops, or all ops, in order without the terminator."""
        ops = [op for op in self.op.body.block.ops if not isinstance(op, flex.YieldOp)]
        return [op for op in ops if not loops or self.loops[op.results[0]] in loops]

    def args(self, loop: Loop) -> list[tuple[SSAValue, SSAValue]]:
        """Return the arguments of a loop, each with the map's operand."""
        pairs = zip(self.op.body.block.args, self.op.inputs, strict=True)
        return [(arg, value) for arg, value in pairs if self.loops[arg] == loop]

    @property
    def columns(self) -> int:
        return self.op.shape[-1]

    def is_vector(self, value: SSAValue) -> bool:
        return self.loops[value] in (Loop.COLUMNS, Loop.ELEMENTS)

    @cached_property
    def is_wide(self) -> bool:
        """True if a vector of the map has 64-bit numbers."""
        return is_wide(self.op)

    @property
    def lanes(self) -> str:
        return "lanes<double>" if self.is_wide else "lanes<float>"


def _keeps_number(op: Operation, index: int) -> bool:
    """Return True if a vector form of an op takes this operand as a scalar."""
    type_ = op.operands[index].type
    if isinstance(op, arith.CmpfOp) and op.predicate.value.data in (ORDERED, UNORDERED):
        return False
    if isinstance(op, _MIXED):
        return scalar_type(type_) in ("int32_t", "int64_t", "float", "double")
    if isinstance(op, arith.SelectOp):
        return index == 0
    if isinstance(op, tile.ReadOp):
        return True
    return isinstance(op, _BY_NUMBERS) and index == 1


@dataclass(eq=False, repr=False)
class MapPrinter(SourcePrinter):
    """A printer of the regions of maps, as scalar code and as vector code."""

    steps: str = field(default="", init=False)
    """The name of the product whose steps lie between the rows of the next map."""

    def names(self, values: Iterable[SSAValue]) -> list[str]:
        return [self.name(v) for v in values]

    def constant(self, value: SSAValue, expression: str) -> None:
        """Define a scalar constant."""
        type_ = scalar_type(value.type)
        self.line(f"const {type_} {self.declare(value)} = {expression};")

    def print_number(self, op: Operation) -> None:
        """Print one op on scalars as a constant with an expression."""
        if isinstance(op, arith.ConstantOp):
            self.bind(op.result, literal(op.value))
        elif is_constant(op):
            self.bind(op.results[0], _rule(op)(op, ["", ""]))
        else:
            self.constant(op.results[0], _rule(op)(op, self.names(op.operands)))

    def print_vector(self, op: Operation, plan: MapPlan) -> None:
        """Print one op on vectors."""
        (result,) = op.results
        args = [
            self.name(v)
            if plan.is_vector(v) or _keeps_number(op, i)
            else self.splat(self.name(v), plan)
            for i, v in enumerate(op.operands)
        ]
        if isinstance(op, tile.ReadOp) and plan.columns % MOST_LANES:
            args.append(f"{plan.columns} - at")
        text = _rule(op)(op, args)
        if result.type == i1 and any(v.type != i1 for v in op.operands):
            text = f"mask({text})"
        self.define(result, text, plan)

    def splat(self, number: str, plan: MapPlan) -> str:
        """Return the expression of a vector whose lanes all are one number."""
        return f"splat<lanes<double>>({number})" if plan.is_wide else f"splat({number})"

    def define(self, value: SSAValue, text: str, plan: MapPlan) -> None:
        """Define a vector, or assign it to its array if the vector outlives a row."""
        if plan.loops[value] == Loop.ELEMENTS:
            type_ = vector_type(value.type, plan.is_wide)
            self.line(f"const {type_} {self.declare(value)} = {text};")
        else:
            self.line(f"{self.name(value)} = {text};")

    def print_scalar_map(self, op: tile.MapOp) -> None:
        """Print a map that yields scalars."""
        for arg, value in zip(op.body.block.args, op.inputs, strict=True):
            self.bind(arg, self.name(value))
        for inner in op.body.block.ops:
            if not isinstance(inner, flex.YieldOp):
                self.print_number(inner)
        for result, value in zip(op.results, yielded(op.body.block), strict=True):
            self.bind(result, self.name(value))

    def print_tile_map(self, plan: MapPlan, labels: Sequence[str]) -> None:
        """Print a map of tiles into the buffers `labels`."""
        self.print_numbers(plan, Loop.NONE)
        lanes = plan.lanes
        if plan.rows is None:
            if self.steps:
                refuse(plan.op, "expects rows, as it is beside a product")
            header = f"for (int at = 0; at < {plan.columns}; at += {lanes})"
            with self.unrolled(plan, header):
                self.print_row(plan, labels)
            return
        step = f"columns_at_once<{plan.columns}, {lanes}>"
        if self.steps:
            shares = f"{plan.rows} / {STEP_ROWS} * ({plan.columns} / {step})"
            self.line(f"{self.steps}.spread({shares});")
        with self.block(f"for (int col = 0; col < {plan.columns}; col += {step})"):
            partial = self.open_columns(plan)
            with self.row_loop(plan):
                self.print_numbers(plan, Loop.ROWS)
                with self.vectors(plan):
                    self.print_row(plan, labels, partial)
            self.close_columns(plan, labels, partial)
        if self.steps:
            self.line(f"{self.steps}.finish();")
            self.steps = ""

    @contextmanager
    def row_loop(self, plan: MapPlan) -> Generator[None]:
        """Open a loop over rows; beside a product, over pairs of rows."""
        if not self.steps:
            with self.block(f"for (int row = 0; row < {plan.rows}; ++row)"):
                yield
            return
        header = "const auto visit = [&](int row, auto second) FLEXC_EACH"
        with self.block(header, ";"):
            yield
        self.line("int row = 0;")
        with self.block(f"for (; row + 1 < {plan.rows}; row += 2)"):
            self.line(f"if (row % {STEP_ROWS} == 0) {self.steps}.share();")
            self.line("visit(row, fixed<0>);")
            self.line("visit(row + 1, fixed<1>);")
        self.line(f"if (row < {plan.rows}) visit(row, fixed<0>);")

    def close_columns(
        self, plan: MapPlan, labels: Sequence[str], partial: Sequence[str]
    ) -> None:
        """Store the reductions, and a last row without a second one of its pair."""
        kept = list(zip(labels, partial, plan.packs, strict=True))
        if any(name and not packs for _, name, packs in kept):
            with self.vectors(plan):
                for label, name, packs in kept:
                    if name and not packs:
                        self.line(f"store_vector({label}.data + at, {name}[v]);")
        if any(plan.packs) and not (plan.rows or "").isdecimal():
            with self.block(f"if ({plan.rows} % 2)"), self.vectors(plan):
                for label, name, packs in kept:
                    if packs:
                        self.print_pair(label, plan.rows, f"{name}[v], Vec<float>{{}}")

    def print_pair(self, label: str, row: str | None, halves: str) -> None:
        target = f"{label}[{row} / 2] + at"
        self.line(f"store_vector({target}, round_pairs({halves}));")

    @contextmanager
    def unrolled(self, plan: MapPlan, header: str) -> Generator[None]:
        if len(plan.computed()) <= MOST_UNROLLED:
            self.line("#pragma GCC unroll 4")
        with self.block(header):
            yield

    @contextmanager
    def vectors(self, plan: MapPlan) -> Generator[None]:
        """Open a loop over the vectors of some columns.

        Beside a product, whose instructions may write any memory, calls of a function
        keep the vectors in registers.
        """
        count = f"vectors_at_once<{plan.columns}, {plan.lanes}>"
        if self.steps:
            with self.block(f"each(UpTo<{count}>{{}}, [&](auto v) FLEXC_EACH", ");"):
                self.line(f"const int at = col + v * {plan.lanes};")
                yield
            return
        header = f"for (int v = 0, at = col; v < {count}; ++v, at += {plan.lanes})"
        with self.unrolled(plan, header):
            yield

    def print_numbers(self, plan: MapPlan, loop: Loop) -> None:
        """Print the scalars that are computed once, or once for a row."""
        for arg, value in plan.args(loop):
            source = self.name(value)
            if loop == Loop.ROWS:
                self.constant(arg, from_memory(arg.type, f"{source}[row]"))
            else:
                self.bind(arg, source)
        for op in plan.computed(loop):
            self.print_number(op)

    def open_columns(self, plan: MapPlan) -> list[str]:
        """Print arrays of the vectors that outlive a row: column values and reductions.

        Return the name of each result's array of partial reductions, or of first rows
        of pairs, "" for a tile.
        """
        arrays: list[tuple[SSAValue, str]] = []
        count = f"vectors_at_once<{plan.columns}, {plan.lanes}>"
        for value, loop in plan.loops.items():
            if loop == Loop.COLUMNS:
                name = self.unique_name(value.name_hint)
                self.bind(value, f"{name}[v]")
                arrays.append((value, name))
        partial: list[str] = []
        for (result, kind, value), packs in zip(
            plan.results(), plan.packs, strict=True
        ):
            outlives = kind is not None or packs
            partial.append(self.unique_name(result.name_hint) if outlives else "")
            if outlives:
                arrays.append((value, partial[-1]))
        for value, name in arrays:
            type_ = vector_type(value.type, plan.is_wide)
            self.line(f"{type_} {name}[{count}];")
        if arrays:
            with self.vectors(plan):
                self.print_columns(plan, partial)
        return partial

    def print_columns(self, plan: MapPlan, partial: Sequence[str]) -> None:
        """Print the vectors that depend on columns alone; initialize reductions."""
        self.print_vectors(plan, Loop.COLUMNS)
        for name, (_, kind, value) in zip(partial, plan.results(), strict=True):
            if kind is not None:
                type_ = scalar_type(value.type)
                identity = f"{COMBINE[kind]}::identity<{type_}>"
                self.line(f"{name}[v] = {self.splat(identity, plan)};")

    def print_vectors(self, plan: MapPlan, loop: Loop) -> None:
        """Print the vectors of some columns, or of some columns of a row."""
        place = "[row]" if plan.rows and loop == Loop.ELEMENTS else ".data"
        lanes = "<lanes<double>>" if plan.is_wide else ""
        for arg, value in plan.args(loop):
            source = f"load_vector{lanes}({self.name(value)}{place} + at)"
            text = from_memory(arg.type, source)
            self.define(arg, f"mask({text})" if arg.type == i1 else text, plan)
        for op in plan.computed(loop):
            self.print_vector(op, plan)

    def print_row(
        self, plan: MapPlan, labels: Sequence[str], partial: Sequence[str] = ()
    ) -> None:
        """Print the code of one vector of a row, and store or reduce the results."""
        self.print_vectors(plan, Loop.ELEMENTS)
        place = "[row]" if plan.rows else ".data"
        for index, (_, kind, value) in enumerate(plan.results()):
            name = self.name(value)
            vector = name if plan.is_vector(value) else self.splat(name, plan)
            if plan.packs[index]:
                first = f"{partial[index]}[v]"
                with self.block("if (second)" if self.steps else "if (row % 2)"):
                    self.print_pair(labels[index], "row", f"{first}, {vector}")
                self.line(f"{first} = {vector};")
            elif kind is None:
                target = f"{labels[index]}{place} + at"
                self.line(f"store_vector({target}, {to_memory(value.type, vector)});")
            else:
                total = f"{partial[index]}[v]"
                combined = f"{COMBINE[kind]}::combine({total}, {vector})"
                self.line(f"{total} = {combined};")


def _rule(op: Operation) -> Rule:
    rule = SCALAR_RULES.get(type(op))
    if rule is None:
        refuse(op, "the C++ target has no rule for it")
    return rule
