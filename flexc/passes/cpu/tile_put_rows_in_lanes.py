"""`tile-put-rows-in-lanes`: put a program's rows in the last dimension of its tiles.

A vector then holds one number for each of several rows. Values per row are vectors,
reductions over columns combine vectors, and products read keys and values as they lie
in memory.

1. A product s = a @ b of rows becomes s^T = b^T @ a^T. All values computed from s are
   transposed too: maps exchange their dimensions, reductions go along the other
   dimension, diagonals are those of the transpose, loops and branches carry transposes.
2. Other tiles have the form that their users need, or both forms. A load is a load or
   the transpose of one, which `legalize-tile-for-cpp` turns into a strided load. Two
   transposes cancel. All other tiles get a transpose op.
3. Tiles that are stored or added to memory are transposed back.

The rows of a program are the rows of most of its products. Kernels stay as they are if
they have no products, or fewer rows than a vector has lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FixedBitwidthType,
    IntegerAttr,
    ModuleOp,
    UnitAttr,
    i32,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import tile
from flexc.dialects.tile import TileType, element_of, shape_of
from flexc.dialects.tile.types import transposed
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.cpp import MACHINES, VectorMachine
from flexc.passes.targets.target import MachineName
from flexc.passes.tile.tile_values import (
    Dim,
    TileDims,
    after,
    defined_values,
    rank,
    separate_constants,
)


class TileForms:
    """Both forms, original and transposed, of each tile of two dimensions.

    `turned` has the values that are already the transposes of the original values.
    """

    def __init__(self, turned: Container[SSAValue]):
        self.turned = turned
        self.made: dict[SSAValue, SSAValue] = {}
        """The other form of a value."""

    def get(self, value: SSAValue, transposed: bool) -> SSAValue:
        """Return the original form of a value, or its transpose."""
        if isinstance(value.owner, tile.TransposeOp):
            return self.get(value.owner.input, not transposed)
        if (value in self.turned) == transposed:
            return value
        if value not in self.made:
            self.made[value] = other_form(value)
        return self.made[value]


def other_form(value: SSAValue) -> SSAValue:
    """Return the transpose of a tile, defined right after the tile."""
    assert isinstance(value.type, TileType)
    if isinstance(owner := value.owner, tile.FullOp):
        op = tile.FullOp(owner.value, transposed(value.type))
    else:
        op = tile.TransposeOp(value)
    return ScalarCode(after(value)).insert(op, value.name_hint)


TURNED = (tile.MapOp, tile.DotOp, scf.ForOp, scf.IfOp)
"""Ops that give transposed results if their operands are transposed."""


class RowTiles:
    """The tiles of a kernel whose first dimension, and not the last, is the rows.

    The rows of a program are the rows of most of its products. The set is empty if
    there are fewer rows than a vector has lanes.
    """

    def __init__(self, block: Block, machine: VectorMachine):
        self.dims = TileDims(block)
        self.rows = self.find_rows(block, machine)

    def find_rows(self, block: Block, machine: VectorMachine) -> Dim | None:
        products = [op for op in block.walk() if isinstance(op, tile.DotOp)]
        counts = Counter(self.dims.find((op.result, 0)) for op in products)
        if not counts:
            return None
        ((rows, _),) = counts.most_common(1)
        return rows if fills_vector(rows, products, machine) else None

    def __contains__(self, value: SSAValue) -> bool:
        """Return True if the rows are a tile's first dimension and not its last."""
        if self.rows is None or rank(value) != 2:
            return False
        return self.dims.along(value, self.rows) == [0]

    def turned(self, op: Operation) -> list[SSAValue]:
        """Return the values of an op that become transposed when its operands do."""
        if not isinstance(op, TURNED):
            return []
        return [value for value in defined_values(op) if value in self]


def fills_vector(rows: Dim, products: list[tile.DotOp], machine: VectorMachine) -> bool:
    """Return True if there are at least as many rows as a vector has lanes."""
    value, dim = rows
    types = (element_of(op.result.type) for op in products)
    bits = [t.bitwidth for t in types if isinstance(t, FixedBitwidthType)]
    return shape_of(value.type)[dim] >= machine.lanes(min(bits))


class LaneRewriter:
    """A rewrite that transposes the tiles of rows of one kernel."""

    def __init__(self, block: Block, rows: RowTiles):
        self.block = block
        self.ops = list(block.walk())
        self.of_rows = {v for op in self.ops for v in tiles_of(op) if v in rows}
        """The tiles of rows, which are best transposed; updated when types change."""
        self.turned = {v for op in self.ops for v in rows.turned(op)}
        self.forms = TileForms(self.turned)

    def run(self) -> None:
        # Change all types first, so that the lookups below find the new values.
        for value in list(self.turned):
            assert isinstance(value.type, TileType)
            type_ = transposed(value.type)
            new = Rewriter.replace_value_with_new_type(value, type_)
            for group in (self.turned, self.of_rows):
                group.remove(value)
                group.add(new)
        for op in self.ops:
            self.rewrite(op)

    def rewrite(self, op: Operation) -> None:
        """Give an op its operands in the right form."""
        match op:
            case tile.MapOp():
                self.rewrite_map(op)
            case tile.DotOp():
                self.rewrite_product(op)
            case tile.ReduceOp():
                self.rewrite_reduction(op)
            case tile.DiagonalsOp():
                self.rewrite_diagonals(op)
            case scf.ForOp():
                self.hand_over(op, 3, op.body.block.args[1:])
                self.hand_over(op.body.block.last_op, 0, op.body.block.args[1:])
            case scf.IfOp():
                for region in op.regions:
                    for block in region.blocks:
                        self.hand_over(block.last_op, 0, op.results)
            case scf.YieldOp() | tile.TransposeOp():
                pass
            case _:
                self.give(op, dict.fromkeys(range(len(op.operands)), False))

    def give(self, op: Operation, forms: dict[int, bool]) -> None:
        """Replace operands by their transposes, or by their original forms."""
        for index, turned in forms.items():
            if rank(op.operands[index]) == 2:
                op.operands[index] = self.forms.get(op.operands[index], turned)

    def hand_over(
        self, op: Operation | None, first: int, targets: Sequence[SSAValue]
    ) -> None:
        """Give operands from `first` on the forms of the values that they become."""
        assert op is not None
        self.give(op, {first + i: v in self.turned for i, v in enumerate(targets)})

    def rewrite_map(self, op: tile.MapOp) -> None:
        """Exchange a map's dimensions; transpose operands that span them reversed."""
        if len(op.shape) != 2:
            return
        turned = op.results[0] in self.turned
        spans = [op.span(i) for i in range(len(op.inputs))]
        self.give(op, {i: turned != (s == (1, 0)) for i, s in enumerate(spans)})
        if turned:
            spans = [tuple(1 - d for d in s) for s in spans]
        # Operands that span both dimensions now span them in order.
        entries = [DenseArrayBase.from_list(i32, sorted(s)) for s in spans]
        op.spans = ArrayAttr(entries)

    def rewrite_product(self, op: tile.DotOp) -> None:
        """Compute a @ b + c, or b^T @ a^T + c^T if the result is transposed."""
        turned = op.result in self.turned
        if turned:
            op.operands[0], op.operands[1] = op.rhs, op.lhs
        self.give(op, dict.fromkeys(range(3), turned))

    def rewrite_reduction(self, op: tile.ReduceOp) -> None:
        """Reduce along the other dimension if the operand is transposed."""
        if rank(op.input) == 2 and op.input in self.of_rows:
            self.give(op, {0: True})
            op.dim = IntegerAttr(1 - op.dim.value.data, i32)
        else:
            self.give(op, {0: False})

    def rewrite_diagonals(self, op: tile.DiagonalsOp) -> None:
        """Sum along the diagonals of the transpose if the operand is transposed."""
        turned = op.input in self.of_rows
        self.give(op, {0: turned})
        if turned:
            op.transposed = None if op.is_transposed else UnitAttr()


def tiles_of(op: Operation) -> Iterable[SSAValue]:
    """Return the tiles that an op or the arguments of its blocks define."""
    return [value for value in defined_values(op) if rank(value)]


@dataclass(frozen=True)
class TilePutRowsInLanesPass(ModulePass):
    """Transpose the tiles of programs so that rows fill vectors."""

    name = "tile-put-rows-in-lanes"

    machine: MachineName = "avx2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [o for o in op.ops if isinstance(o, tile.KernelOp)]:
            block = kernel.body.block
            separate_constants(block)
            LaneRewriter(block, RowTiles(block, MACHINES[self.machine])).run()
        region_dce(op.body)
