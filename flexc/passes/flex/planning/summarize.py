"""`summarize`: the least and greatest values of each block of rows or columns.

A program takes `TILE` blocks of each summary and loops over their positions. Summaries
store narrow integers as i32, booleans as 0 and 1, and half-precision floats as f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    IntegerType,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import ReduceKind, TileType, shape_of
from flexc.passes.flex.planning.kernel_builder import (
    PlanKernelBuilder,
    Scalars,
)
from flexc.passes.masks.blocks.block_code import Summary
from flexc.passes.scalar.scalar_code import ScalarCode, counted_loop, inline_region
from flexc.passes.tile.map_builder import COLUMN, ROW

TILE = 8
"""The number of blocks that a program summarizes at once."""

CHUNK = 128
"""The number of positions of a block that one step reads."""


MIN, MAX = ReduceKind.MIN, ReduceKind.MAX


@dataclass(frozen=True)
class SummaryOutput:
    """One output of a summary: a tensor with an element for each block."""

    axis: str
    index: int
    """The index of the summary."""
    end: Literal["lo", "hi", "nan"]
    kind: ReduceKind
    type: Attribute
    """The type that the classifier takes."""
    empty: float
    """The value of a block without used positions."""

    @property
    def name(self) -> str:
        return f"{self.axis}{self.index}_{self.end}"

    @property
    def stored(self) -> Attribute:
        """The type of the elements in memory."""
        if isinstance(self.type, BFloat16Type | Float16Type):
            return f32
        if isa(self.type, IntegerType):
            return i64 if self.type.width.data > 32 else i32
        return self.type


def outputs_of(summaries: Sequence[Summary]) -> list[SummaryOutput]:
    """Return the outputs of `summarize`, in order: lo, hi and, for floats, nan."""
    found: list[SummaryOutput] = []
    for i, summary in enumerate(summaries):
        type_ = yielded(summary.region.block)[0].type
        if isinstance(type_, AnyFloat):
            least, greatest = -inf, inf
        else:
            assert isa(type_, IntegerType)
            half = 1 << (type_.width.data - 1)
            least, greatest = (0, 1) if type_ == i1 else (-half, half - 1)
        found.append(SummaryOutput(summary.axis, i, "lo", MIN, type_, greatest))
        found.append(SummaryOutput(summary.axis, i, "hi", MAX, type_, least))
        if isinstance(type_, AnyFloat):
            found.append(SummaryOutput(summary.axis, i, "nan", MAX, i1, 0))
    return found


def widened(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """Convert a value to the type in which it is stored."""
    if value.type == type_:
        return value
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    return code.insert(arith.ExtFOp(value, f32))


def narrowed(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """Convert a stored value back to its type."""
    if value.type == type_:
        return value
    if type_ == i1:
        return code.cmp("ne", value, code.const(0, value.type))
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    assert isinstance(type_, AnyFloat)
    return code.insert(arith.TruncFOp(value, type_))


class SummaryWriter:
    """A writer of the code of one summary."""

    def __init__(
        self,
        program: PlanKernelBuilder,
        summary: Summary,
        outputs: Sequence[SummaryOutput],
        blocks: SSAValue,
    ):
        self.program = program
        self.summary = summary
        self.outputs = outputs
        self.blocks = blocks
        (self.size,) = shape_of(blocks.type)
        self.axis = "q" if summary.axis == "row" else "kv"

    def run(self) -> list[SSAValue]:
        """Write the loop over positions; return a tile of blocks for each output."""
        code = self.program.code
        initial: list[SSAValue] = []
        for output in self.outputs:
            empty = code.const(output.empty, output.stored)
            full = tile.FullOp(empty, TileType(output.stored, [self.size]))
            initial.append(code.insert(full, output.end))
        size = self.program.uniform[f"{self.axis}_block"]
        steps = code.ceildiv(size, CHUNK, "steps")
        names = ["step", *(o.end for o in self.outputs)]
        return counted_loop(self.program, steps, initial, self.step, names)

    def step(self, step: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        """Write the code that adds the next positions of every block to the state."""
        code, names = self.program.code, [o.end for o in self.outputs]
        start = code.mul(step, code.const(CHUNK))
        lane = code.insert(tile.IotaOp(start, CHUNK), "lane")
        varying = {"block": (self.blocks, ROW), "lane": (lane, COLUMN)}
        values = self.program.map([self.size, CHUNK], varying, self.values, names)
        parts = [
            code.insert(tile.ReduceOp(o.kind, v, 1), o.end)
            for o, v in zip(self.outputs, values, strict=True)
        ]
        inputs = [(v, ROW) for v in (*state, *parts)]
        varying = dict(
            zip([*names, *(f"{n}_part" for n in names)], inputs, strict=True)
        )
        return self.program.map([self.size], varying, self.combined, names)

    def values(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Return the contribution of a position to each output."""
        size, length = at[f"{self.axis}_block"], at[f"{self.axis}_len"]
        index = code.add(code.mul(at["block"], size), at["lane"], "index")
        exists = code.and_(
            code.cmp("slt", at["lane"], size), code.cmp("slt", index, length)
        )
        last = code.sub(length, code.const(1))
        index = code.insert(arith.MinSIOp(index, last), "index")
        args = [at["b"], at["h"], index, *captures]
        value, used = inline_region(self.summary.region, args, code)
        used = code.and_(used, exists)
        if not isinstance(value.type, AnyFloat):
            return [self.chosen(code, used, value, o) for o in self.outputs]
        nan = code.cmpf("uno", value, value)
        is_number = code.and_(used, code.cmpf("ord", value, value))
        lo, hi, nans = self.outputs
        return [
            self.chosen(code, is_number, value, lo),
            self.chosen(code, is_number, value, hi),
            widened(code, code.and_(used, nan), nans.stored),
        ]

    @staticmethod
    def chosen(
        code: ScalarCode, used: SSAValue, value: SSAValue, output: SummaryOutput
    ) -> SSAValue:
        empty = code.const(output.empty, output.stored)
        return code.select(used, widened(code, value, output.stored), empty)

    def combined(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        results: list[SSAValue] = []
        for output in self.outputs:
            a, b = at[output.end], at[f"{output.end}_part"]
            integer = isa(output.stored, IntegerType)
            if output.kind == ReduceKind.MIN:
                op = arith.MinSIOp(a, b) if integer else arith.MinnumfOp(a, b)
            else:
                op = arith.MaxSIOp(a, b) if integer else arith.MaxnumfOp(a, b)
            results.append(code.insert(op))
        return results


def build_summarize(mask: Region, summaries: Sequence[Summary]) -> tile.KernelOp:
    """Return the kernel that fills all summaries; its grid covers the longer axis."""
    program = PlanKernelBuilder("summarize", mask)
    code, outputs = program.code, outputs_of(summaries)
    start = code.mul(program.program, code.const(TILE), "first_block")
    blocks = code.insert(tile.IotaOp(start, TILE), "block")
    where = [program.b, program.h, start]
    for i, summary in enumerate(summaries):
        own = [o for o in outputs if o.index == i]
        values = SummaryWriter(program, summary, own, blocks).run()
        for output, value in zip(own, values, strict=True):
            at = outputs.index(output)
            memref = program.summary(at, output.name, output.stored, written=True)
            code.builder.insert(tile.StoreOp(value, memref, where, [0]))
    return program.finish()
