"""SSA values with operators, so that formulas in passes read as formulas."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    FloatAttr,
    IntegerType,
    bf16,
    f16,
    f32,
    f64,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.scalar_code import ScalarCode


@dataclass(frozen=True)
class Format:
    """A binary floating-point type: integers of its width, and its fields."""

    type: AnyFloat
    bits: IntegerType
    mantissa: int
    """Bits behind the leading one."""
    max_exponent: int
    """Of the largest number; also the exponent's bias."""

    @property
    def width(self) -> int:
        return self.bits.width.data

    @property
    def sign_mask(self) -> int:
        return -(1 << (self.width - 1))

    @property
    def magic(self) -> float:
        """Adding this rounds to an integer, found in the sum's lowest bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def magic_bits(self) -> int:
        exponent = (self.max_exponent + self.mantissa) << self.mantissa
        return exponent | (1 << (self.mantissa - 1))

    def power_bits(self, n: int) -> int:
        """The bits of 2**n."""
        return (n + self.max_exponent) << self.mantissa

    def bits_of(self, value: float) -> int:
        """The bits of a number that is not negative."""
        code = {32: "f", 64: "d"}[self.width]
        return int.from_bytes(struct.pack(">" + code, value), "big")

    def nearest(self, value: Fraction) -> float:
        return float(FloatAttr(float(value), self.type).value.data)

    def split(self, value: Fraction) -> tuple[float, float]:
        """Two numbers whose sum is close to `value`.

        The first has 12 low bits to spare: its product with an integer that
        fits these is exact.
        """
        digits = self.mantissa - 12
        scale = Fraction(2) ** digits
        high = Fraction(round(value * scale)) / scale
        return float(high), self.nearest(value - high)


FORMATS: dict[AnyFloat, Format] = {
    f16: Format(f16, i16, 10, 15),
    bf16: Format(bf16, i16, 7, 127),
    f32: Format(f32, i32, 23, 127),
    f64: Format(f64, i64, 52, 1023),
}

NARROW = (BFloat16Type, type(f16))
"""Types that math is not computed in."""


class Value:
    """A number being computed. Python numbers mix in and take its type.

    `/` is C's division: of integers, it rounds towards zero.
    """

    def __init__(self, code: ScalarCode, ssa: SSAValue):
        self.code = code
        self.ssa = ssa

    @property
    def type(self) -> Attribute:
        return self.ssa.type

    @property
    def format(self) -> Format:
        """Of a floating-point value."""
        assert isinstance(self.type, AnyFloat)
        return FORMATS[self.type]

    @property
    def is_double(self) -> bool:
        return self.type == f64

    @property
    def width(self) -> int:
        """Of an integer."""
        return cast(IntegerType, self.type).width.data

    def const(self, value: float) -> Value:
        """A number of this value's type."""
        return Value(self.code, self.code.const(value, self.type))

    def same(self, other: Value | float) -> SSAValue:
        return other.ssa if isinstance(other, Value) else self.const(other).ssa

    def apply(self, op: type[Operation], *others: Value | float) -> Value:
        """An op of this value and others, of its type."""
        operands = [self.ssa, *(self.same(o) for o in others)]
        return Value(self.code, self.code.insert(op(*operands)))

    def either(
        self, integer: type[Operation], floating: type[Operation], other: Value | float
    ) -> Value:
        is_integer = isinstance(self.type, IntegerType)
        return self.apply(integer if is_integer else floating, other)

    def __add__(self, other: Value | float) -> Value:
        return self.either(arith.AddiOp, arith.AddfOp, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.either(arith.SubiOp, arith.SubfOp, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.either(arith.MuliOp, arith.MulfOp, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.either(arith.DivSIOp, arith.DivfOp, other)

    def __radd__(self, other: float) -> Value:
        return self.const(other) + self

    def __rsub__(self, other: float) -> Value:
        return self.const(other) - self

    def __rmul__(self, other: float) -> Value:
        return self.const(other) * self

    def __rtruediv__(self, other: float) -> Value:
        return self.const(other) / self

    def __neg__(self) -> Value:
        if isinstance(self.type, IntegerType):
            return 0 - self
        return self.apply(arith.NegfOp)

    def __and__(self, other: Value | int) -> Value:
        return self.apply(arith.AndIOp, other)

    def __or__(self, other: Value | int) -> Value:
        return self.apply(arith.OrIOp, other)

    def __xor__(self, other: Value | int) -> Value:
        return self.apply(arith.XOrIOp, other)

    def __lshift__(self, by: int) -> Value:
        return self.apply(arith.ShLIOp, by)

    def __rshift__(self, by: int) -> Value:
        """The arithmetic shift."""
        return self.apply(arith.ShRSIOp, by)

    def fma(self, by: Value | float, plus: Value | float) -> Value:
        return self.apply(math_dialect.FmaOp, by, plus)

    def compare(self, predicate: str, other: Value | float) -> Value:
        """A comparison: `lt`, of floats ordered; unsigned ones as `ult`."""
        code, right = self.code, self.same(other)
        if isinstance(self.type, AnyFloat):
            prefix = "u" if predicate == "ne" else "o"
            return Value(code, code.cmpf(prefix + predicate, self.ssa, right))
        if len(predicate) == 2 and predicate not in ("eq", "ne"):
            predicate = "s" + predicate
        return Value(code, code.cmp(predicate, self.ssa, right))

    def choose(self, yes: Value | float, no: Value | float) -> Value:
        """`yes` where this i1 holds, else `no`; one of them is a Value."""
        typed = yes if isinstance(yes, Value) else no
        assert isinstance(typed, Value)
        a, b = typed.same(yes), typed.same(no)
        return Value(self.code, self.code.select(self.ssa, a, b))

    def abs(self) -> Value:
        return self.apply(math_dialect.AbsFOp)

    def sqrt(self) -> Value:
        return self.apply(math_dialect.SqrtOp)

    def floor(self) -> Value:
        return self.apply(math_dialect.FloorOp)

    def exp2(self) -> Value:
        return self.apply(math_dialect.Exp2Op)

    def cast(self, op: type[Operation], type_: Attribute) -> Value:
        """A conversion to a type."""
        build: type = op
        return Value(self.code, self.code.insert(build(self.ssa, type_)))

    def as_bits(self) -> Value:
        """The integer of the same bits."""
        return self.cast(arith.BitcastOp, self.format.bits)

    def as_float(self, format: Format) -> Value:
        """The floating-point number of the same bits."""
        return self.cast(arith.BitcastOp, format.type)

    def with_sign_of(self, other: Value) -> Value:
        """C's copysign."""
        mask = self.format.sign_mask
        sign = other.as_bits() & mask
        return ((self.as_bits() & ~mask) | sign).as_float(self.format)

    def with_sign_flipped_by(self, other: Value) -> Value:
        """This number, negated where `other` has a sign."""
        sign = other.as_bits() & self.format.sign_mask
        return (self.as_bits() ^ sign).as_float(self.format)

    def has_sign(self) -> Value:
        """Negative, or the negative zero."""
        return self.as_bits().compare("lt", 0)

    def at_most(self, bound: float) -> Value:
        """The smaller of this and a constant; NaN stays NaN."""
        return self.compare("gt", bound).choose(bound, self)

    def at_least(self, bound: float) -> Value:
        """The larger of this and a constant; NaN stays NaN."""
        return self.compare("lt", bound).choose(bound, self)


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial of the coefficients, that of the highest power first."""
    total = x.const(coefficients[0])
    for c in coefficients[1:]:
        total = total.fma(x, c)
    return total


LN2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680")
LOG2_E = Fraction("1.442695040888963407359924681001892137426645954152985934135449")
LOG10_2 = Fraction("0.301029995663981195213738894724493026768189881462108541310427")
LOG10_E = Fraction("0.434294481903251827651128918916605082294397005803666566114454")
PI = Fraction("3.141592653589793238462643383279502884197169399375105820974945")
