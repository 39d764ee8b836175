"""Analyses of a map's integers visit each value once."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.tile import TileType
from flexc.passes.scalar.strides import LowBits, MapStrides, Stride, step_along

DEPTH = 40
"""So many values that are each used twice are 2^40 paths."""


def doubled(block: Block, value: SSAValue) -> SSAValue:
    """2^40 times a value, as sums of a value and itself."""
    for _ in range(DEPTH):
        value = added(block, arith.AddiOp(value, value))
    return value


def added(block: Block, op: Operation) -> SSAValue:
    block.add_op(op)
    return op.results[0]


def positions() -> SSAValue:
    return tile.IotaOp(arith.ConstantOp(IntegerAttr(0, i32)).result, 16).result


def rows_map(block: Block, values: list[SSAValue]) -> tile.MapOp:
    """A map of a tile whose operands are all a value for each row."""
    spans = [[0] for _ in values]
    return tile.MapOp(values, spans, [TileType(i32, [16, 16])], Region(block))


def low_bits(op: tile.MapOp, value: SSAValue) -> Stride | None:
    """The stride of a value along rows, if sums may wrap around."""
    return MapStrides(LowBits(64)).along(op, 0)[value]


def test_sums_of_shared_values() -> None:
    block = Block(arg_types=[i32])
    total = doubled(block, block.args[0])
    block.add_op(flex.YieldOp(total))
    op = rows_map(block, [positions()])
    assert step_along(op, total, 0) == 1 << DEPTH
    assert step_along(op, total, 1) == 0
    assert low_bits(op, total) == Stride(1 << DEPTH, exact=False)


def test_shared_values_without_a_form() -> None:
    block = Block(arg_types=[i32])
    squared = added(block, arith.MuliOp(block.args[0], block.args[0]))
    total = doubled(block, squared)
    block.add_op(flex.YieldOp(total))
    op = rows_map(block, [positions()])
    assert step_along(op, total, 0) is None
    assert low_bits(op, total) is None


def test_chains_of_maps() -> None:
    """Each map uses the one before twice."""
    value = positions()
    for _ in range(DEPTH):
        block = Block(arg_types=[i32, i32])
        total = added(block, arith.AddiOp(block.args[0], block.args[1]))
        block.add_op(flex.YieldOp(total))
        type_ = TileType(i32, [16])
        op = tile.MapOp([value, value], [[0], [0]], [type_], Region(block))
        value = op.results[0]
    block = Block(arg_types=[i32])
    block.add_op(flex.YieldOp(block.args[0]))
    whole = rows_map(block, [value])
    assert step_along(whole, block.args[0], 0) == 1 << DEPTH
    assert low_bits(whole, block.args[0]) == Stride(1 << DEPTH, exact=False)
