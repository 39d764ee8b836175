"""The layouts in which ops want their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue, Use

from flexc.dialects import tile
from flexc.dialects.tile import (
    AlongAttr,
    LayoutAttr,
    OperandAttr,
    ProductAttr,
    TileType,
    schedule,
    shape_of,
)
from flexc.errors import ScheduleError

Layouts = Mapping[SSAValue, LayoutAttr]


def is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def is_vector(value: SSAValue) -> bool:
    return len(shape_of(value.type)) == 1


def is_made_anew(value: SSAValue) -> bool:
    """Whether a value is made in every layout in which it is used."""
    return isinstance(value.owner, tile.IotaOp | tile.FullOp)


def matrix_layout(columns: int) -> ProductAttr:
    """The layout of a matrix in registers."""
    return ProductAttr(columns)


def layout_along(shape: tuple[int, ...], span: tuple[int, ...]) -> LayoutAttr:
    """The layout of what spans some dimensions of a matrix."""
    matrix = matrix_layout(shape[1])
    return matrix if len(span) == 2 else AlongAttr(span[0], matrix)


def carried_into(use: Use) -> SSAValue | None:
    """What an operand becomes: of a loop what it carries, of a branch a result."""
    op = use.operation
    if isinstance(op, scf.ForOp):
        return op.body.block.args[use.index - 2] if use.index > 2 else None
    if not isinstance(op, scf.YieldOp):
        return None
    parent = op.parent_op()
    if isinstance(parent, scf.ForOp):
        return parent.body.block.args[1 + use.index]
    if not isinstance(parent, scf.IfOp):
        raise ScheduleError("a tile is carried by what is no loop or branch")
    return parent.results[use.index]


def demand(use: Use, layouts: Layouts) -> LayoutAttr | None:
    """The layout in which an operand is wanted, None where any will do.

    `layouts` are those of other values that are known.
    """
    op = use.operation
    if (target := carried_into(use)) is not None:
        return layouts.get(target)
    if isinstance(op, tile.MapOp):
        if len(op.shape) == 1:
            return layouts.get(op.results[0])
        return layout_along(op.shape, op.span(use.index)) if op.shape else None
    if isinstance(op, tile.ReduceOp):
        return matrix_layout(shape_of(op.input.type)[1])
    if isinstance(op, schedule.IssueDotOp):
        return _demand_of_product(op, use.index)
    if isinstance(op, tile.GatherOp | tile.ScatterOp):
        return layouts.get(anchor(op))
    return None


def _demand_of_product(op: schedule.IssueDotOp, index: int) -> LayoutAttr:
    assert isinstance(op.result.type, schedule.PendingType)
    product = matrix_layout(op.result.type.tile.get_shape()[1])
    return OperandAttr(product) if index == 0 else product


def anchor(op: tile.GatherOp | tile.ScatterOp) -> SSAValue:
    """The value in whose layout memory is read or written."""
    if isinstance(op, tile.GatherOp):
        return op.result
    return op.offsets if is_made_anew(op.value) else op.value


def relatives(op: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Pairs of vectors that had best have the same layout."""
    if isinstance(op, tile.MapOp) and len(op.shape) == 1:
        for value in (*op.inputs, *op.results):
            yield op.results[0], value
    elif isinstance(op, tile.GatherOp | tile.ScatterOp):
        for value in (*op.operands, *op.results):
            yield anchor(op), value
    elif isinstance(op, scf.ForOp):
        yield from zip(op.body.block.args[1:], op.results, strict=True)
    for i, value in enumerate(op.operands):
        target = carried_into(Use(op, i))
        if target is not None:
            yield target, value
