"""Build the kernels of a plan: arguments, maps, loops and samples of blocks.

The caller passes the same arguments to all kernels of a plan, and each kernel takes
those that it needs: the mask's captures, `NUMBERS`, then `classes`, `flags` and the
summaries. The grid is (n, heads, batches). The runtime chooses n, so that one kernel
serves all lengths and block sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    IntAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    TensorType,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from flexc.dialects import flex, tile
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.dialects.tile import ParamAttr, ParamKind
from flexc.passes.scalar.readable import describe
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import UNIFORM, Input, build_map, build_maps

NUMBERS = (
    "q_len",
    "kv_len",
    "q_block",
    "kv_block",
    "first_row",
    "q_whole",
    "kv_whole",
    "batches",
    "heads",
)
"""The i32 arguments.

`first_row` is the first block of rows that is planned. Only the first `q_whole` blocks
of rows and the first `kv_whole` blocks of columns may be full. `batches` and `heads`
are those with masks of their own.
"""

DEAD, PARTIAL, FULL, UNKNOWN = range(4)
"""The classes of blocks."""

TILE_ROWS, TILE_COLUMNS = 8, 128
"""The rows and columns of blocks that one program classifies, one flag a row."""

Scalars = Mapping[str, SSAValue]
Body = Callable[[ScalarCode, Scalars, Sequence[SSAValue]], Sequence[SSAValue]]
"""A function that writes a map's region from its named scalars and the captures."""


class PlanKernelBuilder:
    """A builder of one kernel of a plan.

    A kernel that reads no mask has no captures and no numbers.
    """

    def __init__(self, name: str, mask: Region | None):
        self.name = name
        self.mask = mask
        self.block = Block()
        self.code = ScalarCode(self.block)
        self.params: list[ParamAttr] = []
        captures = () if mask is None else mask.block.args[len(INDEX_ARGS) :]
        self.captures = [
            self.argument(i, arg.type, arg.name_hint or "capture")
            for i, arg in enumerate(captures)
        ]
        first = len(self.captures)
        self.uniform: dict[str, SSAValue] = {
            number: self.argument(first + i, i32, number)
            for i, number in enumerate(NUMBERS if mask is not None else ())
        }
        self.first_tensor = first + len(self.uniform)
        """The index of the argument `classes`."""
        self.program = self.code.insert(tile.ProgramIdOp(0), "program")
        self.h = self.uniform["h"] = self.code.insert(tile.ProgramIdOp(1), "h")
        self.b = self.uniform["b"] = self.code.insert(tile.ProgramIdOp(2), "b")

    def argument(self, source: int, type_: Attribute, name: str) -> SSAValue:
        arg = self.block.insert_arg(type_, len(self.block.args))
        arg.name_hint = name
        self.params.append(ParamAttr(ParamKind.ARGUMENT, source))
        return arg

    def classes(self, written: bool) -> SSAValue:
        """Add the blocks' classes, (batches, heads, rows, columns), as an argument."""
        return self._tensor(0, 4, i8, "classes", written)

    def flags(self, written: bool) -> SSAValue:
        """Add the flags, (batches, heads, tiles of columns, rows), as an argument.

        A flag is 1 if a row of a tile has unknown blocks.
        """
        return self._tensor(1, 4, i32, "flags", written)

    def summary(
        self, index: int, name: str, element: Attribute, written: bool
    ) -> SSAValue:
        """Add a summary, (batches, heads, blocks), as an argument."""
        return self._tensor(2 + index, 3, element, name, written)

    def tables(self, index: int) -> SSAValue:
        """Add the memory of all tables, one number after another, as an argument."""
        return self._tensor(index, 1, i32, "tables", written=True)

    def _tensor(
        self, index: int, rank: int, element: Attribute, name: str, written: bool
    ) -> SSAValue:
        strides = ArrayAttr([*[NoneAttr()] * (rank - 1), IntAttr(1)])
        shape = [DYNAMIC_INDEX] * rank
        layout = StridedLayoutAttr(strides)
        if written:
            layout = StridedLayoutAttr(strides, 0)
            type_: Attribute = MemRefType(element, shape, layout)
        else:
            type_ = TensorType(element, shape, layout)
        name = f"{name}_out" if written else name
        return self.argument(self.first_tensor + index, type_, name)

    def blocks(self, axis: str) -> SSAValue:
        """Return the number of blocks of rows ("q") or columns ("kv")."""
        code, size = self.code, self.uniform[f"{axis}_block"]
        padded = code.add(self.uniform[f"{axis}_len"], code.sub(size, code.const(1)))
        return code.div(padded, size, f"{axis}_blocks")

    def map(
        self,
        shape: Sequence[int],
        varying: Mapping[str, Input],
        body: Body,
        names: Sequence[str],
    ) -> list[SSAValue]:
        """Build a map over `varying`, the uniform scalars and the captures."""
        inputs = dict(varying) | {n: (v, UNIFORM) for n, v in self.uniform.items()}
        captures: list[Input] = [(c, UNIFORM) for c in self.captures]

        def write(code: ScalarCode, *args: SSAValue) -> Sequence[SSAValue]:
            return body(
                code, dict(zip(inputs, args, strict=False)), args[len(inputs) :]
            )

        return build_maps(self.code, shape, [*inputs.values(), *captures], write, names)

    def finish(self) -> tile.KernelOp:
        self.code.builder.insert(tile.ReturnOp())
        b, h, n = (AffineExpr.dimension(i) for i in range(3))
        attributes: dict[str, Attribute] = {
            "num_warps": IntegerAttr(4, i64),
            "num_stages": IntegerAttr(1, i64),
        }
        if self.mask is not None:
            attributes["mask"] = StringAttr(describe(self.mask))
        grid = AffineMapAttr(AffineMap(3, 0, (n, h, b)))
        return tile.KernelOp(
            self.name, grid, self.params, Region(self.block), attributes
        )


def mask_at(
    mask: Region,
    code: ScalarCode,
    at: Scalars,
    pair: tuple[SSAValue, SSAValue],
    captures: Sequence[SSAValue],
) -> SSAValue:
    """Return the mask's value at a pair (q_idx, kv_idx)."""
    (live,) = inline_region(mask, [at["b"], at["h"], *pair, *captures], code)
    return live


@dataclass(frozen=True)
class FlaggedTile:
    """The row of a tile of blocks that a program owns."""

    row: SSAValue
    """The index among the planned blocks of rows."""
    m: SSAValue
    """The index among all blocks of rows."""
    column_tile: SSAValue
    column: SSAValue
    flag: SSAValue
    """1 if a block is unknown, else 0; usable as a number of steps."""


def flagged_tile(program: PlanKernelBuilder) -> FlaggedTile:
    """Find the row of a tile that this program owns; the grid has one for each flag."""
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
    program: PlanKernelBuilder, tensor: SSAValue, where: Sequence[SSAValue], name: str
) -> SSAValue:
    """Read one element of a tensor; the indices `where` must be in range."""

    def body(code: ScalarCode, t: SSAValue, *indices: SSAValue) -> SSAValue:
        return code.insert(flex.LoadCaptureOp(t, indices, inside=True))

    inputs = [(v, UNIFORM) for v in (tensor, *where)]
    return build_map(program.code, (), inputs, body, name)


Pair = tuple[SSAValue, SSAValue]


@dataclass(frozen=True)
class BlockSpan:
    """The first and the last existing position of a block."""

    first: SSAValue
    last: SSAValue


def span_of(code: ScalarCode, block: SSAValue, at: Scalars, axis: str) -> BlockSpan:
    """Return the positions of a block of rows ("q") or columns ("kv")."""
    size, end = at[f"{axis}_block"], code.sub(at[f"{axis}_len"], code.const(1))
    first = code.min(code.mul(block, size), end, f"{axis}_first")
    last = code.add(first, code.sub(size, code.const(1)))
    return BlockSpan(first, code.min(last, end, f"{axis}_last"))


def existing(code: ScalarCode, index: SSAValue, size: SSAValue) -> SSAValue:
    """Return an index that exists: the last one for those beyond it."""
    return code.min(index, code.sub(size, code.const(1)), index.name_hint)


def sample_pairs(code: ScalarCode, q: BlockSpan, kv: BlockSpan) -> list[Pair]:
    """Return the pairs of a block that are sampled; some may coincide."""
    corners = [(row, c) for row in (q.first, q.last) for c in (kv.first, kv.last)]
    pairs = [*corners, (_middle(code, q), _middle(code, kv))]
    pairs.append((q.first, _next(code, kv)))
    pairs.append((_next(code, q), kv.first))
    # The diagonal enters the block at the first point and leaves it at the second.
    for point in (code.max(q.first, kv.first), code.min(q.last, kv.last)):
        pairs.append((_within(code, point, q), _within(code, point, kv)))
    return pairs


def _middle(code: ScalarCode, span: BlockSpan) -> SSAValue:
    length = code.sub(span.last, span.first)
    half = code.insert(arith.ShRSIOp(length, code.const(1)))
    return code.add(span.first, half)


def _next(code: ScalarCode, span: BlockSpan) -> SSAValue:
    return code.min(code.add(span.first, code.const(1)), span.last)


def _within(code: ScalarCode, point: SSAValue, span: BlockSpan) -> SSAValue:
    return code.min(code.max(point, span.first), span.last)


def whole(code: ScalarCode, at: Scalars) -> SSAValue:
    """Write the condition that block (m, n) may be full."""
    rows = code.cmp("slt", at["m"], at["q_whole"])
    return code.and_(rows, code.cmp("slt", at["n"], at["kv_whole"]))


def proved_partial(
    mask: Region, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
) -> SSAValue:
    """Write the condition that samples prove block (m, n) partial."""
    q, kv = span_of(code, at["m"], at, "q"), span_of(code, at["n"], at, "kv")
    alive, broken = code.flag(False), code.not_(whole(code, at))
    for pair in sample_pairs(code, q, kv):
        live = mask_at(mask, code, at, pair, captures)
        alive = code.or_(alive, live)
        broken = code.or_(broken, code.not_(live))
    return code.and_(alive, broken)
