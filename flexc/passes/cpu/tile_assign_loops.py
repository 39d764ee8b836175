"""`tile-assign-loops`: choose the loops in which a map of tiles computes its values.

A map prints as a loop over vectors of columns and a loop over rows. A value of its
region is computed where all its operands are known, once for all elements that share
it. The attribute `tile.loops` has an entry for each argument of the region and then for
each op: `none`, `rows`, `columns` or `elements`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects import flex, tile
from flexc.dialects.tile import LOOPS, Loop
from flexc.passes.tile.map_builder import Span, variance

_CONSTANT_PREDICATES = (0, 15)
"""The predicates of `arith.cmpf` that are false, or true, for all operands."""


def is_constant(op: Operation) -> bool:
    """Return True if a comparison gives the same result for all operands."""
    is_cmpf = isinstance(op, arith.CmpfOp)
    return is_cmpf and op.predicate.value.data in _CONSTANT_PREDICATES


def loops_of(op: tile.MapOp | tile.PanelMapOp) -> list[Loop]:
    """Return the loops of the region's arguments and of its ops, in order."""
    along, last, block = variance(op), len(op.shape) - 1, op.body.block

    def loop(dims: Span) -> Loop:
        if last in dims:
            return Loop.ELEMENTS if 0 in dims else Loop.COLUMNS
        return Loop.ROWS if dims else Loop.NONE

    values: list[SSAValue] = list(block.args)
    for inner in block.ops:
        if not isinstance(inner, flex.YieldOp):
            (result,) = inner.results
            values.append(result)
            if is_constant(inner):
                along[result] = Span()
    return [loop(along[value]) for value in values]


@dataclass(frozen=True)
class TileAssignLoopsPass(ModulePass):
    """State the loops in which maps of tiles compute their values."""

    name = "tile-assign-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            if isinstance(inner, tile.MapOp | tile.PanelMapOp) and inner.shape:
                loops = [StringAttr(loop) for loop in loops_of(inner)]
                inner.attributes[LOOPS] = ArrayAttr(loops)
