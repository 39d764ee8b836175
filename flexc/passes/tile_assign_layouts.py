"""`tile-assign-layouts`: which thread of a role has which elements of its tiles.

A matrix lies as the result of a product with as many columns does, and a left operand
of a product as that product reads it from registers. A vector belongs to the rows or
the columns of a matrix: of that whose reduction made it, or else of that which most of
its uses ask for. Sequences and constants are made anew in each layout in which they
are used; other values are converted where they are used in another.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects.tile import LayoutAttr, OperandAttr, TileType, schedule, shape_of
from flexc.passes.layouts.demands import (
    demand,
    is_made_anew,
    matrix_layout,
)
from flexc.passes.layouts.placing import Placer
from flexc.passes.layouts.vectors import VectorClasses


def assign_layouts(region: Region) -> None:
    """Give all tiles of a role their layouts."""
    layouts = matrices(region)
    carry_operands(region, layouts)
    layouts.update(VectorClasses(region).layouts())
    Placer(region, layouts).run()


def matrices(region: Region) -> dict[SSAValue, LayoutAttr]:
    """The layouts of matrices, and of products in flight."""
    layouts: dict[SSAValue, LayoutAttr] = {}
    for op in region.walk():
        args = (a for each in op.regions for b in each.blocks for a in b.args)
        for value in (*op.results, *args):
            type_ = value.type
            if isinstance(type_, schedule.PendingType):
                type_ = type_.tile
            is_matrix = isinstance(type_, TileType) and len(type_.get_shape()) == 2
            if is_matrix and not is_made_anew(value):
                layouts[value] = matrix_layout(shape_of(type_)[1])
    return layouts


def carry_operands(region: Region, layouts: dict[SSAValue, LayoutAttr]) -> None:
    """Let loops carry as left operands what is used as nothing else."""
    for op in reversed(list(region.walk())):
        if not isinstance(op, scf.ForOp):
            continue
        for arg, result in zip(op.body.block.args[1:], op.results, strict=True):
            if arg not in layouts:
                continue
            wanted = {demand(use, layouts) for v in (arg, result) for use in v.uses}
            layout = wanted.pop() if len(wanted) == 1 else None
            if isinstance(layout, OperandAttr):
                layouts[arg] = layouts[result] = layout


@dataclass(frozen=True)
class TileAssignLayoutsPass(ModulePass):
    """Decide which thread has which elements."""

    name = "tile-assign-layouts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for role in list(op.walk()):
            if isinstance(role, schedule.RoleOp):
                assign_layouts(role.body)
