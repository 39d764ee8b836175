"""`convert-blocksparse-to-tile`: ops over segments as the code of one program each.

`programs` has what a program of each op does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import AffineMapAttr, ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.tile import TileType, element_of, shape_of
from flexc.errors import UnsupportedOpError
from flexc.passes.blocksparse.programs.arguments import (
    aligned,
    grid_of,
    is_part,
    source_of,
)
from flexc.passes.blocksparse.programs.attention import AttentionProgram
from flexc.passes.blocksparse.programs.builder import Place
from flexc.passes.blocksparse.programs.online_softmax import convert, extended
from flexc.passes.blocksparse.programs.pair_sums import PairSumsProgram
from flexc.passes.blocksparse.programs.pair_tiles import Side
from flexc.passes.blocksparse.programs.rows import rows_kernel
from flexc.passes.blocksparse.programs.splits import combine_kernel
from flexc.passes.blocksparse.programs.visits import Visit
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import (
    FULL,
    UNIFORM,
    Input,
    build_map,
)

# Sums by row and by column of one visit to each pair, as the code of one program.
#
# A program owns the columns of one head of the keys' side: no other adds to what
# belongs to them, unless there are parts, which have results of their own. Its rows are
# all that see these columns, those of each head of the query that shares theirs; of
# `parts` of programs each takes every so many-th block of rows, as late rows may see
# more.
#
# 1. For each of its blocks of rows load what rows have, and visit segments as any sums
# over pairs do. 2. In each block of columns add what belongs to these where it lies, in
# memory. Rows    beyond the last, and columns, are left out by counts. 3. Scale, round
# and store what was summed by row.
#
# The runtime fills sums by column with zeros, and adds the parts up.


PART, HEAD, BATCH = range(3)
"""Axes of the grid."""


class OnePassProgram(PairSumsProgram):
    """Builds the kernel of a `blocksparse.pair_sums` with sums by column."""

    def build(self) -> tile.KernelOp:
        self.by_column = self.of_kind(SumKind.COLUMN_MATRIX)
        self.locate()
        self.each_block_of_rows()
        kinds = [attr.sum_kind for attr in self.op.sums]
        result = self.op.sums_[kinds.index(SumKind.COLUMN_MATRIX)]
        known = aligned(self.op, self.all_matrices) | grid_of(result, self.op)
        return self.kernel(self.summary() | known)

    def grid(self) -> AffineMapAttr:
        """A program for each part of each head: the first sizes of a result."""
        parts, b, h = (AffineExpr.dimension(i) for i in range(3))
        return AffineMapAttr(AffineMap(3, 0, (parts, h, b)))

    # Places

    def locate(self) -> None:
        """Which columns this program owns, and how many rows see them."""
        code = self.code
        query, key = (
            self.args[source_of(self.op.rows[0])],
            self.args[self.op.columns[0]],
        )

        def sizes(dim: int, name: str) -> tuple[SSAValue, SSAValue]:
            q_size, kv_size = (
                code.insert(tile.DimOp(tensor, dim), f"{side}_{name}")
                for side, tensor in (("q", query), ("kv", key))
            )
            return q_size, kv_size

        self.row_len, self.column_len = sizes(2, "len")
        self.part_id, h, b = (
            code.insert(tile.ProgramIdOp(axis), name)
            for axis, name in ((PART, "part"), (HEAD, "kv_h"), (BATCH, "kv_b"))
        )
        self.columns = Side(b, h, code.const(0))
        parts = tile.DimOp(self.args[self.by_column[0][1]], 0)
        self.parts = code.insert(parts, "parts")
        self.group = code.div(*sizes(1, "heads"), "group")
        self.shared = code.div(*sizes(0, "batches"), "shared_batches")
        rows = self.row_len
        if self.op.first:
            assert self.of_rows is not None
            rows = code.insert(tile.DimOp(self.args[self.of_rows], 2), "part_rows")
        self.row_blocks = code.ceildiv(rows, self.block_m, "row_blocks")

    def each_block_of_rows(self) -> None:
        """Visit what this part's blocks of rows see."""
        code = self.code
        heads = code.mul(self.group, self.shared)
        blocks = code.mul(heads, self.row_blocks, "blocks")
        left = code.sub(blocks, self.part_id)
        count = code.add(left, code.sub(self.parts, code.const(1)))
        count = code.div(count, self.parts, "own_blocks")
        body = Block(arg_types=[i32])
        body.args[0].name_hint = "n"
        self.code = ScalarCode(body)
        self.block_of_rows(body.args[0])
        self.code.builder.insert(scf.YieldOp())
        self.code = code
        loop = scf.ForOp(code.const(0), count, code.const(1), [], Region(body))
        code.builder.insert(loop)

    def block_of_rows(self, n: SSAValue) -> None:
        """The n-th of this part's blocks of rows: blocks of one head, then the next."""
        code = self.code
        number = code.add(self.part_id, code.mul(n, self.parts), "number")
        head = code.div(number, self.row_blocks, "shared")
        block = code.rem(number, self.row_blocks, "m_block")
        start = code.mul(block, code.const(self.block_m), "row_start")
        b = code.mul(self.columns.b, self.shared)
        b = code.add(b, code.div(head, self.group), "q_b")
        h = code.mul(self.columns.h, self.group)
        h = code.add(h, code.rem(head, self.group), "q_h")
        self.rows = self.stored = Side(b, h, start)
        for first in self.op.first:
            start = code.add(start, self.args[first], "row_start")
            self.rows = Side(b, h, start)
        left = code.sub(self.row_len, start)
        size = arith.MinSIOp(left, code.const(self.block_m))
        self.row_count = code.insert(size, "row_count")
        self.load_rows()
        self.column_factors = [self.factors(attr) for attr, _ in self.by_column]
        state = [self.zeros(value) for _, value in self.matrices]
        state = self.visit(self.place, state)
        for (attr, result), acc in zip(self.matrices, state, strict=True):
            self.store_matrix(attr, result, acc)

    def columns_of(self, place: Place) -> Side:
        return self.columns

    # Sums by column

    def factors(self, attr: SumAttr) -> list[SSAValue]:
        """The rows that a sum adds up multiples of, scaled if it is."""
        rows = [self.row_tiles[number] for _, number in attr.term_list()]
        return [self.scaled(tile_) if attr.scaled else tile_ for tile_ in rows]

    def scaled(self, rows: SSAValue) -> SSAValue:
        """Of rows there are fewer than of sums by column that are added."""
        type_ = self.op.score_type
        inputs: list[Input] = [(rows, FULL), (self.args[self.op.scale], UNIFORM)]

        def body(code: ScalarCode, x: SSAValue, scale: SSAValue) -> SSAValue:
            return code.insert(arith.MulfOp(extended(code, x, type_), scale))

        return build_map(self.code, shape_of(rows.type), inputs, body, "scaled")

    @property
    def diagonals(self) -> list[SSAValue]:
        """Its own: of a head it is the only program that has its part of the rows."""
        return [self.rows.b, self.rows.h, self.part_id]

    def store_pairs(
        self, visit: Visit, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        super().store_pairs(visit, values, checked)
        start, count = visit.start, visit.count
        if count is None and checked:
            left = self.code.sub(self.column_len, start)
            size = arith.MinSIOp(left, self.code.const(self.block_n))
            count = self.code.insert(size, "column_count")
        for (attr, result), factors in zip(
            self.by_column, self.column_factors, strict=True
        ):
            self.add_to_columns(attr, result, values, factors, start, count)

    def add_to_columns(
        self,
        attr: SumAttr,
        result: SSAValue,
        values: Sequence[SSAValue],
        factors: Sequence[SSAValue],
        start: SSAValue,
        count: SSAValue | None,
    ) -> None:
        """Add the transpose of values @ rows to what belongs to a block of columns."""
        code = self.code
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_n))
        zero = code.const(0.0, self.op.score_type)
        acc = code.insert(tile.FullOp(zero, type_), "zeros")
        for (number, _), rows in zip(attr.term_list(), factors, strict=True):
            weights = convert(code, values[number], element_of(rows.type))
            turned = code.insert(tile.TransposeOp(weights), "turned")
            dot = tile.DotOp(turned, rows, acc, self.row_count)
            acc = code.insert(dot, f"{result.name_hint or 'column'}_sums")
        where = [self.part_id, *self.columns.where[:2], start, code.const(0)]
        code.builder.insert(tile.AddToOp(acc, self.args[result], where, count))


def kernel_of(op: Operation, name: str, target: str) -> tile.KernelOp | None:
    """The kernel that an op becomes; None for an op that becomes none."""
    match op:
        case blocksparse.AttentionOp():
            return AttentionProgram(op, name, target).build()
        case blocksparse.PairSumsOp() if has_column_sums(op):
            if target != "cpp":
                raise UnsupportedOpError(
                    f"{target} has no {op.name} with sums by column: programs would "
                    "add to the same memory"
                )
            return OnePassProgram(op, name, target).build()
        case blocksparse.PairSumsOp():
            return PairSumsProgram(op, name, target).build()
        case flex.RowDotsOp() | flex.WeighRowsOp():
            return None if is_part(op) else rows_kernel(op, name, target)
        case flex.CombineSplitsOp():
            return combine_kernel(op, name, target)
        case _:
            return None


def has_column_sums(op: blocksparse.PairSumsOp) -> bool:
    return any(attr.sum_kind == SumKind.COLUMN_MATRIX for attr in op.sums)


@dataclass(frozen=True)
class ConvertBlocksparseToTilePass(ModulePass):
    """Write each op over segments in tile ops."""

    name = "convert-blocksparse-to-tile"

    target: Literal["triton", "gluon", "cpp"] = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp):
                continue
            name, kernels = function.sym_name.data, 0
            for inner in function.walk():
                number = f"_{kernels}" if kernels else ""
                kernel = kernel_of(inner, name + number, self.target)
                if kernel is not None:
                    op.body.block.insert_op_before(kernel, function)
                    kernels += 1
            if kernels:
                function.detach()
                function.erase()
