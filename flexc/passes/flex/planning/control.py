"""Loops and reads of single elements, for kernels that look at flagged tiles only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import flex
from flexc.passes.flex.planning.program import TILE_COLUMNS, Program
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import UNIFORM, build_map

Step = Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]]


@dataclass(frozen=True)
class FlaggedTile:
    """A row of a tile of blocks: which program has it, and whether it must look."""

    row: SSAValue
    """Among the rows that are planned."""
    m: SSAValue
    """Among all rows."""
    column_tile: SSAValue
    column: SSAValue
    flag: SSAValue
    """1 if a block is unknown, else 0: a number of steps."""


def flagged_tile(program: Program) -> FlaggedTile:
    """Where this program is, if the grid has one for each flag."""
    code = program.code
    tiles = code.ceildiv(program.blocks("kv"), TILE_COLUMNS, "column_tiles")
    column_tile = code.rem(program.program, tiles, "column_tile")
    row = code.div(program.program, tiles, "row")
    m = code.add(row, program.uniform["first_row"], "m")
    where = [program.b, program.h, column_tile, row]
    flag = read(program, program.flags(written=False), where, "flag")
    column = code.mul(column_tile, code.const(TILE_COLUMNS), "column")
    return FlaggedTile(row, m, column_tile, column, flag)


def read(
    program: Program, tensor: SSAValue, where: Sequence[SSAValue], name: str
) -> SSAValue:
    """One element of a tensor; `where` is in range."""

    def body(code: ScalarCode, t: SSAValue, *indices: SSAValue) -> SSAValue:
        return code.insert(flex.LoadCaptureOp(t, indices, inside=True))

    inputs = [(v, UNIFORM) for v in (tensor, *where)]
    return build_map(program.code, (), inputs, body, name)


def loop(
    program: Program,
    count: SSAValue,
    state: Sequence[SSAValue],
    step: Step,
    names: Sequence[str] = (),
) -> list[SSAValue]:
    """A loop of `count` steps that carries `state`."""
    outer = program.code
    block = Block(arg_types=[i32, *(v.type for v in state)])
    for arg, name in zip(block.args, ("i", *names), strict=True):
        arg.name_hint = name
    program.code = ScalarCode(block)
    program.code.builder.insert(scf.YieldOp(*step(block.args[0], block.args[1:])))
    program.code = outer
    zero, one = outer.const(0), outer.const(1)
    op = scf.ForOp(zero, count, one, state, Region(block))
    outer.builder.insert(op)
    return list(op.results)
