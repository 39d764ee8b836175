"""Hypothesis strategies: masks as regions, where anything may wrap around.

Written op by op, not by a frontend: integers of all widths that overflow, divisors
of any sign, tables of extreme numbers and NaNs, loads out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
    f32,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.scalar_code import ScalarCode, new_region
from tests.property.classifier_reference import Mask

BINARY = (
    *[arith.AddiOp, arith.SubiOp, arith.SubiOp, arith.MuliOp] * 3,
    *[arith.FloorDivSIOp, arith.DivSIOp, arith.RemSIOp, arith.AndIOp] * 2,
    *[arith.OrIOp, arith.XOrIOp, arith.MinSIOp, arith.MaxSIOp] * 2,
    *[arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp, arith.DivUIOp, arith.RemUIOp],
    *[arith.MinUIOp, arith.MaxUIOp, arith.CeilDivSIOp],
)
FLOAT_BINARY = (
    *[arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.MaximumfOp, arith.MinimumfOp],
    *[arith.DivfOp, arith.MaxnumfOp, arith.MinnumfOp],
)
FLOAT_UNARY = (
    *[arith.NegfOp, math.AbsFOp, math.FloorOp, math.CeilOp, math.RoundEvenOp],
    *[math.TruncOp, math.SinOp, math.SqrtOp],
)
INTEGERS = (i32, i32, i32, i64, i64, i8)
SMALL = (0, 1, -1, 2, 3, 4, 5, 7, 8, 15, 16, 40, -3, -8)
FLOATS = (0.0, -0.0, 1.0, 0.5, -2.0, 16.0, 1e30, -1e38, float("inf"), float("nan"))

TABLES: dict[str, tuple[Attribute, int]] = {
    "table_i32": (i32, 1),
    "table_i64": (i64, 1),
    "table_i8": (i8, 1),
    "table_f32": (f32, 1),
    "flags": (i1, 1),
    "pairs": (i1, 2),
    "pairs_i32": (i32, 2),
}


def extremes(width: int) -> list[int]:
    top = 1 << (width - 1)
    return [top - 1, -top, top - 2, 1 - top, top // 2, -top // 2, 17, -30]


def table(kind: Attribute, shape: tuple[int, ...], style: str, seed: int) -> Tensor:
    """Sorted, small, or extreme numbers."""
    g = torch.Generator().manual_seed(seed)
    if kind == i1:
        rows = torch.rand(shape, generator=g)
        return rows < {"sorted": 0.5, "small": 0.05, "extreme": 0.95}[style]
    values = torch.randint(-4, 20, shape, generator=g)
    if style == "sorted":
        values = values.sort(dim=-1).values
    if kind == f32:
        chosen = torch.tensor(FLOATS)[torch.randint(len(FLOATS), shape, generator=g)]
        return chosen if style == "extreme" else values / 4
    assert isinstance(kind, IntegerType)
    width = kind.width.data
    dtype = {8: torch.int8, 32: torch.int32, 64: torch.int64}[width]
    if style == "extreme":
        options = torch.tensor(extremes(width))
        values = options[torch.randint(len(options), shape, generator=g)]
    return values.to(dtype)


class RegionBuilder:
    """Values of a mask region, drawn one by one."""

    def __init__(self, draw: Callable[..., Any], length: int):
        self.draw = draw
        types: list[Attribute] = [*[i32] * 4, i32, i64]
        types += [
            TensorType(kind, [DYNAMIC_INDEX] * rank) for kind, rank in TABLES.values()
        ]
        names = ["b", "h", "q_idx", "kv_idx", "number", "wide", *TABLES]
        self.region = new_region(types, names)
        self.args = dict(zip(names, self.region.block.args, strict=True))
        self.code = ScalarCode(self.region.block)
        numbers = [self.pick((*SMALL, *extremes(w))) for w in (32, 64)]
        self.captures: list[Tensor] = [
            torch.tensor(numbers[0], dtype=torch.int32),
            torch.tensor(numbers[1], dtype=torch.int64),
        ]
        for kind, rank in TABLES.values():
            shape = tuple(self.pick((1, 5, length)) for _ in range(rank))
            style = self.pick(("sorted", "small", "extreme"))
            self.captures.append(table(kind, shape, style, self.pick(range(1000))))

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def cast(self, value: SSAValue, type_: IntegerType) -> SSAValue:
        if self.pick((True, True, True, False)) or value.type == i1:
            return self.code.int_cast(value, type_)
        assert isinstance(value.type, IntegerType)
        if value.type.width.data < type_.width.data:
            return self.insert(arith.ExtUIOp(value, type_))
        return self.code.int_cast(value, type_)

    def insert(self, op: Operation) -> SSAValue:
        return self.code.insert(op)

    def leaf(self, type_: IntegerType) -> SSAValue:
        names = ("q_idx", "kv_idx", "q_idx", "kv_idx", "b", "h", "number", "wide")
        if self.pick((True, True, False)):
            return self.cast(self.args[self.pick(names)], type_)
        some = (*SMALL, *SMALL, *extremes(type_.width.data))
        return self.insert(arith.ConstantOp(IntegerAttr(self.pick(some), type_)))

    def integer(self, depth: int, type_: IntegerType) -> SSAValue:
        kinds = ("leaf", *["binary"] * 4, "cast", "load", "select", "abs", "flag")
        match self.pick(kinds) if depth else "leaf":
            case "binary":
                a, b = (self.integer(depth - 1, type_) for _ in range(2))
                return self.insert(self.pick(BINARY)(a, b))
            case "cast":
                return self.cast(self.integer(depth - 1, self.pick(INTEGERS)), type_)
            case "load":
                names = ["table_i32", "table_i64", "table_i8", "pairs_i32"]
                return self.cast(self.load(self.pick(names), depth - 1), type_)
            case "select":
                a, b = (self.integer(depth - 1, type_) for _ in range(2))
                return self.code.select(self.condition(depth - 1), a, b)
            case "abs":
                return self.insert(math.AbsIOp(self.integer(depth - 1, type_)))
            case "flag":
                kind = self.pick((arith.ExtUIOp, arith.ExtSIOp))
                return self.insert(kind(self.condition(depth - 1), type_))
            case _:
                return self.leaf(type_)

    def load(self, name: str, depth: int) -> SSAValue:
        rank = TABLES[name][1]
        indices = [self.integer(min(depth, 1), i32) for _ in range(rank)]
        return self.insert(flex.LoadCaptureOp(self.args[name], indices))

    def real(self, depth: int) -> SSAValue:
        kinds = ("integer", "load", "binary", "binary", "unary", "select", "const")
        match self.pick(kinds) if depth else self.pick(("load", "const")):
            case "integer":
                kind = self.pick(INTEGERS)
                return self.insert(arith.SIToFPOp(self.integer(depth - 1, kind), f32))
            case "load":
                return self.load("table_f32", depth)
            case "binary":
                a, b = self.real(depth - 1), self.real(depth - 1)
                return self.insert(self.pick(FLOAT_BINARY)(a, b))
            case "unary":
                return self.insert(self.pick(FLOAT_UNARY)(self.real(depth - 1)))
            case "select":
                a, b = self.real(depth - 1), self.real(depth - 1)
                return self.code.select(self.condition(depth - 1), a, b)
            case _:
                value = self.pick(FLOATS)
                return self.insert(arith.ConstantOp(FloatAttr(value, f32)))

    def condition(self, depth: int) -> SSAValue:
        kinds = (*["compare"] * 4, *["logic"] * 3, "load", "float", "float", "trunc")
        match self.pick(kinds) if depth else "compare":
            case "logic":
                a, b = self.condition(depth - 1), self.condition(depth - 1)
                some = (arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.AndIOp)
                if self.pick((True, True, False)):
                    return self.insert(self.pick(some)(a, b))
                if self.pick((True, False)):
                    return self.code.cmp(self.pick(CMPI), a, b)
                return self.code.select(self.condition(depth - 1), a, b)
            case "load":
                return self.load(self.pick(("flags", "pairs")), depth - 1)
            case "float":
                a, b = self.real(depth - 1), self.real(depth - 1)
                return self.code.cmpf(self.pick(CMPF), a, b)
            case "trunc":
                return self.insert(arith.TruncIOp(self.integer(depth - 1, i32), i1))
            case _:
                kind = self.pick(INTEGERS)
                below = max(depth - 1, 0)
                a, b = self.integer(below, kind), self.integer(below, kind)
                return self.code.cmp(self.pick(CMPI), a, b)


CMPI = arith.CMPI_COMPARISON_OPERATIONS
CMPF = arith.CMPF_COMPARISON_OPERATIONS


@st.composite
def mask_regions(draw: Callable[..., Any], length: int, depth: int = 4) -> Mask:
    """A mask region and its captures."""
    builder = RegionBuilder(draw, length)
    builder.code.yield_(builder.condition(depth))
    return Mask(builder.region, builder.captures)
