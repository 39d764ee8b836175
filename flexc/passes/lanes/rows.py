"""Which tiles of a program are to be transposed so that its rows lie in lanes."""

from __future__ import annotations

from collections import Counter

from xdsl.dialects import scf
from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import element_of, shape_of
from flexc.passes.analysis.tile_dims import Dim, TileDims, rank
from flexc.passes.vector_machine import VectorMachine

TURNED = (tile.MapOp, tile.DotOp, scf.ForOp, scf.IfOp)
"""Ops whose results are transposed by transposing what they work on."""


class RowTiles:
    """The tiles of a kernel whose first dimension, not the last, is the rows.

    A program's rows are what most of its products have as rows. There are none where
    they would fill no vector.
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
        """Whether a tile's first dimension is the rows, and its last is not."""
        if self.rows is None or rank(value) != 2:
            return False
        return self.dims.along(value, self.rows) == [0]

    def turned(self, op: Operation) -> list[SSAValue]:
        """What an op defines that is to be transposed by transposing its operands."""
        if not isinstance(op, TURNED):
            return []
        args = [arg for r in op.regions for b in r.blocks for arg in b.args]
        return [value for value in (*op.results, *args) if value in self]


def fills_vector(rows: Dim, products: list[tile.DotOp], machine: VectorMachine) -> bool:
    """Whether a vector of the sums' type has no more lanes than there are rows."""
    value, dim = rows
    types = (element_of(op.result.type) for op in products)
    bits = [t.bitwidth for t in types if isinstance(t, FixedBitwidthType)]
    return shape_of(value.type)[dim] >= machine.lanes(min(bits))
