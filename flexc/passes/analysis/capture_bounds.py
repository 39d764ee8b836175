"""Whether captured loads stay within their tensors, for the lengths of a call.

The indices of a load are run through interval arithmetic with the positions,
sizes and captured numbers of one call. A proof holds for every pair of positions,
masked ones included; without one, loads stay guarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex
from flexc.passes.analysis.intervals import Interval, point
from flexc.passes.analysis.value_ranges import ValueRanges


def unwrapped(index: SSAValue) -> SSAValue:
    """i of `select(i < 0, i + n, i)`, torch's reading of negative indices."""
    op = index.owner
    if not isinstance(op, arith.SelectOp) or not isinstance(
        op.cond.owner, arith.CmpiOp
    ):
        return index
    test = op.cond.owner
    is_less = arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] == "slt"
    wraps = is_less and test.lhs is op.rhs and _is_zero(test.rhs)
    return op.rhs if wraps else index


def _is_zero(value: SSAValue) -> bool:
    owner = value.owner
    return (
        isinstance(owner, arith.ConstantOp)
        and isinstance(owner.value, IntegerAttr)
        and owner.value.value.data == 0
    )


def captures_inside(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[int | tuple[int, ...] | None],
) -> bool:
    """Whether every captured load of a mod region is in range, without wrapping.

    `positions` are the ranges of b, h, q_idx and kv_idx; `captures` what is known
    of the captures: an integer, a tensor's shape, or None.
    """
    args = region.block.args[len(region.block.args) - len(captures) :]
    indices = region.block.args[: len(region.block.args) - len(captures)][-4:]
    known: dict[SSAValue, Interval] = dict(zip(indices, positions, strict=True))
    shapes: dict[SSAValue, tuple[int, ...]] = {}
    for arg, what in zip(args, captures, strict=True):
        if isinstance(what, tuple):
            shapes[arg] = what
        elif what is not None and isinstance(arg.type, IntegerType):
            known[arg] = point(what)
    for op in region.block.ops:
        if isinstance(op, flex.DimOp):
            known[op.result] = point(shapes[op.tensor][op.dim.value.data])
    ranges = ValueRanges(known)
    return all(
        _load_inside(op, ranges, shapes)
        for op in region.block.ops
        if isinstance(op, flex.LoadCaptureOp)
    )


def _load_inside(
    op: flex.LoadCaptureOp,
    ranges: ValueRanges,
    shapes: Mapping[SSAValue, tuple[int, ...]],
) -> bool:
    sizes = shapes[op.tensor]
    return min(sizes, default=1) > 0 and all(
        ranges[unwrapped(index)].within(Interval(0, size - 1))
        for index, size in zip(op.indices, sizes, strict=True)
    )
