"""Which floats the values of a region of scalar code may be.

`FloatRanges` follows operands up to the region's arguments, of which nothing is
known: the score before a mod may be infinite and NaN. Integers that become floats
have the ranges of `ValueRanges`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr, bf16, f16, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.ranges import float_functions as functions
from flexc.passes.scalar.ranges import float_intervals as floats
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.float_intervals import (
    ANY,
    FloatInterval,
    Format,
)
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of

FORMATS: dict[Attribute, Format] = {
    f16: floats.F16,
    bf16: floats.BF16,
    f32: floats.F32,
    f64: floats.F64,
}

Transfer = Callable[..., FloatInterval]

ROUNDED: dict[type[Operation], Transfer] = {
    arith.AddfOp: floats.add,
    arith.SubfOp: floats.subtract,
    arith.MulfOp: floats.multiply,
    arith.DivfOp: floats.divide,
    arith.TruncFOp: floats.rounded,
    math_dialect.PowFOp: functions.power,
    math_dialect.RsqrtOp: functions.rsqrt,
    math_dialect.CoshOp: functions.cosh,
    math_dialect.AcosOp: functions.acos,
    math_dialect.SinOp: functions.wave,
    math_dialect.CosOp: functions.wave,
    math_dialect.FloorOp: functions.whole,
    math_dialect.CeilOp: functions.whole,
    math_dialect.TruncOp: functions.whole,
    math_dialect.RoundOp: functions.whole,
    math_dialect.RoundEvenOp: functions.whole,
    math_dialect.TanhOp: functions.INCREASING["tanh"],
    math_dialect.ErfOp: functions.INCREASING["erf"],
    math_dialect.AtanOp: functions.INCREASING["atan"],
    math_dialect.ExpOp: functions.INCREASING["exp"],
    math_dialect.Exp2Op: functions.INCREASING["exp2"],
    math_dialect.ExpM1Op: functions.INCREASING["expm1"],
    math_dialect.LogOp: functions.INCREASING["log"],
    math_dialect.Log2Op: functions.INCREASING["log2"],
    math_dialect.Log10Op: functions.INCREASING["log10"],
    math_dialect.Log1pOp: functions.INCREASING["log1p"],
    math_dialect.SqrtOp: functions.INCREASING["sqrt"],
    math_dialect.CbrtOp: functions.INCREASING["cbrt"],
    math_dialect.SinhOp: functions.INCREASING["sinh"],
    math_dialect.AsinhOp: functions.INCREASING["asinh"],
    math_dialect.AcoshOp: functions.INCREASING["acosh"],
    math_dialect.AtanhOp: functions.INCREASING["atanh"],
    math_dialect.AsinOp: functions.INCREASING["asin"],
}
"""Ranges of operands, and the format of the result, to that of the result."""

EXACT: dict[type[Operation], Transfer] = {
    arith.NegfOp: floats.negate,
    arith.MinimumfOp: floats.minimum,
    arith.MaximumfOp: floats.maximum,
    arith.MinnumfOp: floats.minimum_number,
    arith.MaxnumfOp: floats.maximum_number,
    math_dialect.AbsFOp: floats.absolute,
    math_dialect.CopySignOp: functions.copy_sign,
    flex.FmodOp: functions.remainder,
}
"""The same for results that need no rounding."""


class FloatRanges:
    """Intervals of the float values of one region, computed when asked for."""

    def __init__(self, integers: ValueRanges, known: Mapping[SSAValue, FloatInterval]):
        self.integers = integers
        self._ranges = dict(known)

    def __getitem__(self, value: SSAValue) -> FloatInterval:
        """The range of a value of a floating-point type."""
        found = self._ranges.get(value)
        if found is None:
            found = self._ranges[value] = self._compute(value)
        return found

    def _compute(self, value: SSAValue) -> FloatInterval:
        op, fmt = value.owner, FORMATS.get(value.type)
        if not isinstance(op, Operation) or fmt is None:
            return ANY
        if isinstance(op, arith.MulfOp) and op.lhs is op.rhs:
            return floats.square(self[op.lhs], fmt)
        if (transfer := ROUNDED.get(type(op))) is not None:
            return transfer(*(self[v] for v in op.operands), fmt)
        if (transfer := EXACT.get(type(op))) is not None:
            return transfer(*(self[v] for v in op.operands))
        return self._compute_other(op, fmt)

    def _compute_other(self, op: Operation, fmt: Format) -> FloatInterval:
        match op:
            case arith.ConstantOp(value=FloatAttr() as attr):
                return floats.point(attr.value.data, fmt)
            case arith.ExtFOp():
                return self[op.input]
            case arith.BitcastOp() if op.input.type == op.result.type:
                return self[op.input]
            case arith.SIToFPOp():
                source = self.integers[op.input]
                return floats.of_integers(source.lo, source.hi, fmt)
            case arith.UIToFPOp():
                width = width_of(op.input.type)
                source = intervals.zero_extend(self.integers[op.input], width)
                return floats.of_integers(source.lo, source.hi, fmt)
            case math_dialect.FmaOp():
                a, b, c = (self[v] for v in op.operands)
                return floats.add(floats.multiply(a, b, fmt), c, fmt)
            case arith.SelectOp():
                return floats.union(*(self[v] for v in self.chosen(op)))
            case _:
                return ANY

    def chosen(self, op: arith.SelectOp) -> tuple[SSAValue, ...]:
        """The operands that a select may yield."""
        condition = self.integers[op.cond].constant
        if condition is None:
            return op.lhs, op.rhs
        return (op.lhs if condition else op.rhs,)

    def without_minus_inf(self, value: SSAValue) -> FloatInterval:
        """The range of a score, of those that weigh something.

        A mod that masks yields -inf, by a select or by adding what a select gave.
        """
        op, fmt = value.owner, FORMATS.get(value.type)
        if fmt is None or self[value].hi == -inf:
            return floats.NOTHING
        match op:
            case arith.SelectOp():
                parts = [self.without_minus_inf(v) for v in self.chosen(op)]
                return floats.union(*parts)
            case arith.AddfOp():
                a, b = (self.without_minus_inf(v) for v in op.operands)
                if floats.NOTHING in (a, b):
                    return floats.NOTHING
                return floats.add(a, b, fmt)
            case _:
                return self[value]


def culprit(value: SSAValue, ranges: FloatRanges) -> str:
    """The op, or the argument, that leaves a value without bounds."""
    op = value.owner
    if not isinstance(op, Operation):
        return f"nothing bounds {value.name_hint or 'an argument'}, an argument"
    for operand in op.operands:
        if isinstance(operand.type, AnyFloat) and not ranges[operand].is_finite:
            return culprit(operand, ranges)
    if isinstance(op, arith.ConstantOp):
        return "a constant is not finite"
    if isinstance(op, flex.LoadCaptureOp):
        return f"nothing bounds the values of {op.tensor.name_hint or 'a tensor'}"
    return f"nothing bounds {op.name}"
