"""Tiles of a kernel of sums over pairs."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import TileType
from flexc.passes.blocksparse.programs.builder import RowBlock, Visit
from flexc.passes.blocksparse.programs.pair_maps import PairMapBuilder
from flexc.passes.blocksparse.programs.rows import map_rows
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.targets.target import Target
from flexc.passes.targets.triton import UNALIGNED_VALUE_DIM
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    convert,
)


class PairKernelBuilder(PairMapBuilder):
    """A writer of the loads, values and stores of one `blocksparse.pair_sums`."""

    rows: RowBlock
    """The origin of the program's rows, at a query head if it is theirs alone."""
    key_rows: RowBlock | None = None
    """The origin in the matrices of rows, if that is another one."""
    stored: RowBlock
    """The origin of the program's results, which may cover only some of all rows."""
    row_block: SSAValue
    made: dict[SSAValue, SSAValue]
    """The program's rows of the results of absorbed ops."""
    row_tiles: Sequence[SSAValue]
    """The tiles of the matrices of the rows."""
    row_values: Sequence[SSAValue]
    column_values: Sequence[SSAValue]

    op: blocksparse.PairSumsOp

    def __init__(self, op: blocksparse.PairSumsOp, name: str, target: Target):
        super().__init__(op, name, target)
        self.op = op
        self.sums = list(zip(op.sums, op.sums_, strict=True))
        self.matrices = self.of_kind(SumKind.MATRIX)
        self.totals = self.of_kind(SumKind.TOTAL)
        self.of_rows = op.sum_of_rows
        """The first result with a dimension of rows, or None."""
        whole = op.length_multiple(of_rows=True) % self.block_m == 0
        self.checked: list[int] = [] if whole else [0]
        self.needs_rows = bool(self.checked and self.of_kind(SumKind.DIAGONAL))
        if op.is_transposed:
            self.column_name = "q_start"

    def of_kind(self, kind: SumKind) -> list[tuple[SumAttr, SSAValue]]:
        return [(attr, value) for attr, value in self.sums if attr.sum_kind == kind]

    def tile_shape(self, matrix: SSAValue, rows: int) -> tuple[int, int]:
        least = 16 if self.op.alignment is not None else UNALIGNED_VALUE_DIM
        dim = flex.tensor_shape(matrix)[-1]
        return rows, self.target.padded(dim, least)

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
        """Return the program's rows of a tensor, computed or loaded."""
        if isinstance(tensor.owner, flex.MapRowsOp):
            if tensor not in self.made:
                is_matrix, m = flex.is_matrix(tensor), self.block_m
                shape = self.tile_shape(tensor, m) if is_matrix else (m,)
                self.made[tensor] = map_rows(
                    self.code, tensor, shape, self.rows_of, self.args
                )
            return self.made[tensor]
        if flex.is_matrix(tensor):
            where = (self.key_rows or self.rows).where
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
        """Load a vector of the query's rows, for either side of the pairs."""
        assert isa(values.type, TensorType[Attribute])
        where = [self.place.b, self.place.h, start]
        type_ = TileType(values.type.element_type, [size])
        load = tile.LoadOp(self.args[values], where, checked, type_, count)
        return self.code.insert(load, values.name_hint)

    def zeros(self, result: SSAValue) -> SSAValue:
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_m))
        zero = self.code.const(0.0, self.op.score_type)
        return self.code.insert(tile.FullOp(zero, type_), "acc")

    def scaled(self, tile_: SSAValue) -> SSAValue:
        """Multiply a tile by the scale."""
        inputs: list[Input] = [(tile_, FULL), (self.args[self.op.scale], UNIFORM)]
        shape = tile.shape_of(tile_.type)
        return build_map(self.code, shape, inputs, ScalarCode.mulf, "scaled")

    def store_matrix(self, attr: SumAttr, result: SSAValue, acc: SSAValue) -> None:
        code = self.code
        if attr.scaled:
            acc = self.scaled(acc)
        assert isa(result.type, TensorType[Attribute])
        rounded = convert(code, acc, result.type.element_type)
        padded = tile.shape_of(acc.type)[1] != flex.tensor_shape(result)[3]
        checked = [*self.checked, *([1] if padded else [])]
        memref, zero = self.args[result], code.const(0)
        if self.key_rows is None:
            where = [*self.stored.where, zero]
            code.builder.insert(tile.StoreOp(rounded, memref, where, checked))
        else:
            where = [*self.key_rows.where, zero]
            turn = self.turn_of_sum(result)
            add = tile.AddToOp(rounded, memref, where, None, checked, True, *turn)
            code.builder.insert(add)

    def turn_of_sum(self, result: SSAValue) -> tuple[SSAValue | None, list[SSAValue]]:
        """Return the progress and the turn for an addition to a sum of keys."""
        return None, []

    def store_pairs(
        self, visit: Visit, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        """Write the values of this block of pairs, or add up their diagonals."""
        code = self.code
        pairs = [
            (r, values[a.term_list()[0][0]]) for a, r in self.of_kind(SumKind.PAIRS)
        ]
        if pairs and visit.exists is not None:
            # In a dummy iteration, the block's results belong to other iterations.
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
        """Store the values of this block in the result of each sum of kind PAIRS."""
        dims = [*self.checked, *([1] if checked and visit.count is None else [])]
        where = [*self.stored.where, visit.start]
        for result, value in pairs:
            store = tile.StoreOp(value, self.args[result], where, dims, visit.count)
            code.builder.insert(store)

    @property
    def diagonals(self) -> list[SSAValue]:
        """The origin of the sums along diagonals: one for each program."""
        return [self.stored.b, self.stored.h, self.row_block]

    def diagonal_place(self, start: SSAValue) -> SSAValue:
        """Write the first entry of diagonals that a block of columns adds to."""
        code, unit = self.code, flex.DIAGONAL_UNIT
        zero = code.mul(code.ceildiv(self.column_len, unit), code.const(unit))
        place = code.add(code.sub(self.rows.start, start), zero)
        return code.add(place, code.const(unit - self.block_n), "at")

    def dots(self, columns: Sequence[SSAValue]) -> list[SSAValue]:
        """Write the dot products that are arguments of the region."""
        return [self.dot(product, columns) for product in self.op.product_list()]

    def dot(
        self, product: Sequence[tuple[int, int]], columns: Sequence[SSAValue]
    ) -> SSAValue:
        """Write one sum of dot products of rows and columns."""
        code = self.code
        zero = code.const(0.0, self.op.score_type)
        type_ = TileType(self.op.score_type, [self.block_m, self.block_n])
        acc = code.insert(tile.FullOp(zero, type_), "zeros")
        for row, column in product:
            turned = code.insert(tile.TransposeOp(columns[column]))
            turned.name_hint = f"{columns[column].name_hint}_t"
            acc = code.insert(tile.DotOp(self.row_tiles[row], turned, acc), "dot")
        return acc

    def pair_values(self, visit: Visit, dots: Sequence[SSAValue]) -> list[SSAValue]:
        """Write the values that the region yields, 0 for dead pairs."""
        given: list[Input] = [
            *((dot, FULL) for dot in dots),
            (self.args[self.op.scale], UNIFORM),
            *((v, ROW) for v in self.row_values),
            *((v, COLUMN) for v in self.column_values),
        ]

        def body(
            code: ScalarCode, own: list[SSAValue], mod_args: list[SSAValue]
        ) -> list[SSAValue]:
            return inline_region(self.op.pairs, [*own, *mod_args], code)

        return self.values(visit, given, body, self.names())

    def names(self) -> list[str]:
        """Return the names of the values that the region yields."""
        return [v.name_hint or "value" for v in yielded(self.op.pairs.block)]

    def clamps_rows(self, visit: Visit) -> bool:
        # What mods read by row alone is read before loops, also where a branch in the
        # loop is for blocks without rows beyond the last.
        return self.needs_rows or bool(self.checked and self.trusts_captures)
