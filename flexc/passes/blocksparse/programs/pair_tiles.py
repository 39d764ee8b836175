"""What a program of sums over pairs loads and stores: tiles of rows and of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.tile import TileType
from flexc.passes.blocksparse.programs.arguments import OverRows, is_matrix
from flexc.passes.blocksparse.programs.builder import Place, ProgramBuilder
from flexc.passes.blocksparse.programs.online_softmax import convert
from flexc.passes.blocksparse.programs.rows import made_rows
from flexc.passes.blocksparse.programs.visits import Visit
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.tile_sizes import UNALIGNED_VALUE_DIM, padded_head_dim
from flexc.passes.tile.map_builder import (
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
)


@dataclass(frozen=True)
class Side:
    """Where the matrices of one side are read: batch, head, first position."""

    b: SSAValue
    h: SSAValue
    start: SSAValue

    @property
    def where(self) -> list[SSAValue]:
        return [self.b, self.h, self.start]


class PairTiles(ProgramBuilder):
    """A program of one `blocksparse.pair_sums`: where it is, and what is in memory."""

    rows: Side
    """Its rows."""
    stored: Side
    """Where its results belong, in what may be a part of all."""
    row_block: SSAValue
    row_len: SSAValue
    column_len: SSAValue
    made: dict[SSAValue, SSAValue]
    """Its rows of what ops over rows make."""
    place: Place
    """What it visits segments for, at the moment."""

    op: blocksparse.PairSumsOp

    def __init__(self, op: blocksparse.PairSumsOp, name: str, target: str):
        super().__init__(op, name, target)
        self.op = op
        self.sums = list(zip(op.sums, op.sums_, strict=True))
        self.matrices = self.of_kind(SumKind.MATRIX)
        self.totals = self.of_kind(SumKind.TOTAL)
        self.of_rows = op.sum_of_rows
        """A result that has as many rows as it owns, if there is one."""
        whole = op.length_multiple(of_rows=True) % self.block_m == 0
        self.checked: list[int] = [] if whole else [0]
        if op.is_transposed:
            self.column_name = "q_start"

    def of_kind(self, kind: SumKind) -> list[tuple[SumAttr, SSAValue]]:
        return [(attr, value) for attr, value in self.sums if attr.sum_kind == kind]

    def tile_shape(self, matrix: SSAValue, rows: int) -> tuple[int, int]:
        least = 16 if self.op.alignment is not None else UNALIGNED_VALUE_DIM
        dim = flex.tensor_shape(matrix)[-1]
        return rows, padded_head_dim(self.target, dim, least)

    def load_matrix(
        self,
        matrix: SSAValue,
        rows: int,
        where: Sequence[SSAValue],
        checked: Sequence[int],
        count: SSAValue | None = None,
    ) -> SSAValue:
        name = f"{matrix.name_hint or 'matrix'}_tile"
        shape = self.tile_shape(matrix, rows)
        return self.load(matrix, shape, where, checked, name, count)

    def rows_of(self, tensor: SSAValue) -> SSAValue:
        """The program's rows of a tensor, made or loaded."""
        if isinstance(tensor.owner, OverRows):
            if tensor not in self.made:
                self.made[tensor] = made_rows(self.code, tensor.owner, self.rows_of)
                self.made[tensor].name_hint = tensor.name_hint
            return self.made[tensor]
        if is_matrix(tensor):
            where = self.rows.where
            return self.load_matrix(tensor, self.block_m, where, self.checked)
        start = self.place.start
        return self.load_values(tensor, start, self.block_m, self.checked)

    def load_values(
        self,
        values: SSAValue,
        start: SSAValue,
        size: int,
        checked: Sequence[int],
        count: SSAValue | None = None,
    ) -> SSAValue:
        """Values of the query's rows, wherever those are."""
        assert isa(values.type, TensorType[Attribute])
        where = [self.place.b, self.place.h, start]
        type_ = TileType(values.type.element_type, [size])
        load = tile.LoadOp(self.args[values], where, checked, type_, count)
        return self.code.insert(load, values.name_hint)

    def zeros(self, result: SSAValue) -> SSAValue:
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_m))
        zero = self.code.const(0.0, self.op.score_type)
        return self.code.insert(tile.FullOp(zero, type_), "acc")

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
            return code.insert(arith.AddfOp(x, y))

        inputs: list[Input] = [(a, ROW), (b, ROW)]
        return build_map(self.code, (self.block_m,), inputs, body, "total")

    def store_matrix(self, attr: SumAttr, result: SSAValue, acc: SSAValue) -> None:
        code = self.code
        if attr.scaled:
            scale = self.args[self.op.scale]

            def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
                return code.insert(arith.MulfOp(x, y))

            inputs: list[Input] = [(acc, FULL), (scale, UNIFORM)]
            acc = build_map(code, tile.shape_of(acc.type), inputs, body, "scaled")
        assert isa(result.type, TensorType[Attribute])
        rounded = convert(code, acc, result.type.element_type)
        padded = tile.shape_of(acc.type)[1] != flex.tensor_shape(result)[3]
        checked = [*self.checked, *([1] if padded else [])]
        where = [*self.stored.where, code.const(0)]
        code.builder.insert(tile.StoreOp(rounded, self.args[result], where, checked))

    def store_pairs(
        self, visit: Visit, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        """Write the values of this block of pairs, or add up their diagonals."""
        code = self.code
        pairs = [
            (r, values[a.term_list()[0][0]]) for a, r in self.of_kind(SumKind.PAIRS)
        ]
        if pairs and visit.exists is not None:
            # What is visited in place of nothing belongs to others.
            block = Block()
            self.write_pairs(ScalarCode(block), pairs, visit, checked)
            block.add_op(scf.YieldOp())
            code.builder.insert(scf.IfOp(visit.exists, [], Region(block)))
        else:
            self.write_pairs(code, pairs, visit, checked)
        for attr, result in self.of_kind(SumKind.DIAGONAL):
            ((number,),) = attr.term_list()
            diagonals = tile.DiagonalsOp(values[number], visit.count)
            sums = code.insert(diagonals, "diagonals")
            where = [*self.diagonals, self.diagonal_place(visit.start)]
            code.builder.insert(tile.AddToOp(sums, self.args[result], where))

    def write_pairs(
        self,
        code: ScalarCode,
        pairs: Sequence[tuple[SSAValue, SSAValue]],
        visit: Visit,
        checked: Sequence[int],
    ) -> None:
        """Write values where each result has them."""
        dims = [*self.checked, *([1] if checked and visit.count is None else [])]
        where = [*self.stored.where, visit.start]
        for result, value in pairs:
            store = tile.StoreOp(value, self.args[result], where, dims, visit.count)
            code.builder.insert(store)

    @property
    def diagonals(self) -> list[SSAValue]:
        """Where its sums along diagonals belong, among those of all programs."""
        return [self.stored.b, self.stored.h, self.row_block]

    def diagonal_place(self, start: SSAValue) -> SSAValue:
        """The first entry that a block of columns has a sum for."""
        code, unit = self.code, flex.DIAGONAL_UNIT
        zero = code.mul(code.ceildiv(self.column_len, unit), code.const(unit))
        place = code.add(code.sub(self.rows.start, start), zero)
        return code.add(place, code.const(unit - self.block_n), "at")
