"""`summarize`: the least and greatest values of each block of rows or columns.

A program takes `TILE` blocks of each summary and walks along their positions. Narrow
integers are kept as i32, booleans as 0 and 1, and half-precision floats as f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
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
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.flex.planning.program import (
    Program,
    Scalars,
    SummaryTensor,
)
from flexc.passes.masks.blocks.block_classifier import Summary
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import COLUMN, ROW

TILE = 8
"""Blocks that a program summarizes at once."""

CHUNK = 128
"""Positions of a block that it looks at in one step."""

MIN, MAX = ReduceKind.MIN, ReduceKind.MAX


@dataclass(frozen=True)
class Extreme:
    """One of a summary's outputs."""

    name: str
    kind: ReduceKind
    type: Attribute
    """What the classifier takes it as."""
    empty: float
    """Its value where there is none."""

    @property
    def stored(self) -> Attribute:
        """What it is kept as in memory."""
        return stored_type(self.type)


def stored_type(type_: Attribute) -> Attribute:
    if isinstance(type_, BFloat16Type | Float16Type):
        return f32
    if isa(type_, IntegerType):
        return i64 if type_.width.data > 32 else i32
    return type_


def extremes(summary: Summary) -> list[Extreme]:
    """The outputs of a summary: lo, hi and, for floats, nan."""
    value = summarized(summary.region)
    if isinstance(value, AnyFloat):
        inf = float("inf")
        found = [Extreme("lo", MIN, value, inf), Extreme("hi", MAX, value, -inf)]
        return [*found, Extreme("nan", MAX, i1, 0)]
    assert isa(value, IntegerType)
    if value == i1:
        return [Extreme("lo", MIN, i1, 1), Extreme("hi", MAX, i1, 0)]
    half = 1 << (value.width.data - 1)
    return [Extreme("lo", MIN, value, half - 1), Extreme("hi", MAX, value, -half)]


def summarized(region: Region) -> Attribute:
    """The type of the values that a summary's region yields."""
    last = region.block.last_op
    assert isinstance(last, flex.YieldOp)
    return last.values[0].type


def summary_tensors(summaries: Sequence[Summary]) -> list[SummaryTensor]:
    """All outputs of `summarize`, in order."""
    return [
        SummaryTensor(f"{s.axis}{i}_{e.name}", e.stored)
        for i, s in enumerate(summaries)
        for e in extremes(s)
    ]


def widened(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """A value as its stored type."""
    if value.type == type_:
        return value
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    return code.insert(arith.ExtFOp(value, f32))


def narrowed(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """A stored value as what it was."""
    if value.type == type_:
        return value
    if type_ == i1:
        return code.cmp("ne", value, code.const(0, value.type))
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    assert isinstance(type_, AnyFloat)
    return code.insert(arith.TruncFOp(value, type_))


class SummaryWriter:
    """Writes the code of one summary into a program."""

    def __init__(self, program: Program, summary: Summary, blocks: SSAValue):
        self.program = program
        self.summary = summary
        self.outputs = extremes(summary)
        self.blocks = blocks
        self.axis = "q" if summary.axis == "row" else "kv"

    def run(self) -> list[SSAValue]:
        """A tile of blocks for each output."""
        code = self.program.code
        initial: list[SSAValue] = []
        for output in self.outputs:
            empty = code.const(output.empty, output.stored)
            full = tile.FullOp(empty, TileType(output.stored, [TILE]))
            initial.append(code.insert(full, output.name))
        size = self.program.uniform[f"{self.axis}_block"]
        steps = code.ceildiv(size, CHUNK, "steps")
        body = Block(arg_types=[i32, *(v.type for v in initial)])
        body.args[0].name_hint = "step"
        self.program.code = ScalarCode(body)
        new = self.step(body.args[0], body.args[1:])
        self.program.code.builder.insert(scf.YieldOp(*new))
        self.program.code = code
        zero, one = code.const(0), code.const(1)
        loop = scf.ForOp(zero, steps, one, initial, Region(body))
        code.builder.insert(loop)
        return list(loop.results)

    def step(self, step: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        """Take in the next positions of every block."""
        code, names = self.program.code, [o.name for o in self.outputs]
        for arg, name in zip(state, names, strict=True):
            arg.name_hint = name
        start = code.mul(step, code.const(CHUNK))
        lane = code.insert(tile.IotaOp(start, CHUNK), "lane")
        varying = {"block": (self.blocks, ROW), "lane": (lane, COLUMN)}
        values = self.program.map([TILE, CHUNK], varying, self.values, names)
        parts = [
            code.insert(tile.ReduceOp(o.kind, v, 1), o.name)
            for o, v in zip(self.outputs, values, strict=True)
        ]
        inputs = [(v, ROW) for v in (*state, *parts)]
        varying = dict(
            zip([*names, *(f"{n}_part" for n in names)], inputs, strict=True)
        )
        return self.program.map([TILE], varying, self.combined, names)

    def values(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """What a position adds to each output."""
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
        code: ScalarCode, used: SSAValue, value: SSAValue, output: Extreme
    ) -> SSAValue:
        empty = code.const(output.empty, output.stored)
        return code.select(used, widened(code, value, output.stored), empty)

    def combined(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        results: list[SSAValue] = []
        for output in self.outputs:
            a, b = at[output.name], at[f"{output.name}_part"]
            integer = isa(output.stored, IntegerType)
            if output.kind == MIN:
                op = arith.MinSIOp(a, b) if integer else arith.MinnumfOp(a, b)
            else:
                op = arith.MaxSIOp(a, b) if integer else arith.MaxnumfOp(a, b)
            results.append(code.insert(op))
        return results


def build_summarize(mask: Region, summaries: Sequence[Summary]) -> tile.KernelOp:
    """The kernel that fills all summary tensors; its grid covers the longer axis."""
    program = Program("summarize", mask)
    code, tensors = program.code, iter(enumerate(summary_tensors(summaries)))
    start = code.mul(program.program, code.const(TILE), "first_block")
    blocks = code.insert(tile.IotaOp(start, TILE), "block")
    for summary in summaries:
        for value in SummaryWriter(program, summary, blocks).run():
            memref = program.summary(*next(tensors), written=True)
            where = [program.b, program.h, start]
            code.builder.insert(tile.StoreOp(value, memref, where, [0]))
    return program.finish()
