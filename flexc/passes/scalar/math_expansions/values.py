"""Wrap SSA values with operators, so that formulas in passes read as formulas."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, BFloat16Type, IntegerType, f16, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.ranges.float_intervals import Format
from flexc.passes.scalar.ranges.float_values import FORMATS
from flexc.passes.scalar.scalar_code import ScalarCode

NARROW = (BFloat16Type, type(f16))
"""The types in which math functions are not computed."""


class Value:
    """An SSA value with operators. Python numbers as operands take the value's type.

    `/` is C's division, which rounds integers towards zero.
    """

    def __init__(self, code: ScalarCode, ssa: SSAValue):
        self.code = code
        self.ssa = ssa

    @property
    def type(self) -> Attribute:
        return self.ssa.type

    @property
    def format(self) -> Format:
        """The format of a floating-point value."""
        return FORMATS[self.type]

    @property
    def is_double(self) -> bool:
        return self.type == f64

    @property
    def width(self) -> int:
        """The number of bits of an integer."""
        return cast(IntegerType, self.type).width.data

    def const(self, value: float) -> Value:
        """Return a constant of this value's type."""
        return Value(self.code, self.code.const(value, self.type))

    def same(self, other: Value | float) -> SSAValue:
        return other.ssa if isinstance(other, Value) else self.const(other).ssa

    def apply(self, op: type[Operation], *others: Value | float) -> Value:
        """Insert an op whose operands are this value and others of its type."""
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
        """Shift right arithmetically."""
        return self.apply(arith.ShRSIOp, by)

    def fma(self, by: Value | float, plus: Value | float) -> Value:
        return self.apply(math_dialect.FmaOp, by, plus)

    def compare(self, predicate: str, other: Value | float) -> Value:
        """Compare with `lt`, `eq` and so on, or unsigned with `ult` and so on.

        Comparisons of floats are ordered, except for `ne`.
        """
        code, right = self.code, self.same(other)
        if isinstance(self.type, AnyFloat):
            prefix = "u" if predicate == "ne" else "o"
            return Value(code, code.cmpf(prefix + predicate, self.ssa, right))
        if len(predicate) == 2 and predicate not in ("eq", "ne"):
            predicate = "s" + predicate
        return Value(code, code.cmp(predicate, self.ssa, right))

    def choose(self, yes: Value | float, no: Value | float) -> Value:
        """Return `yes` where this i1 is true, else `no`; one must be a Value."""
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
        """Insert a conversion op to a type."""
        build: type = op
        return Value(self.code, self.code.insert(build(self.ssa, type_)))

    def as_bits(self) -> Value:
        """Return the integer that has the same bits."""
        return self.cast(arith.BitcastOp, IntegerType(self.format.width))

    def as_float(self, type_: Attribute) -> Value:
        """Return the floating-point number that has the same bits."""
        return self.cast(arith.BitcastOp, type_)

    def with_sign_of(self, other: Value) -> Value:
        """Return C's copysign of this number and `other`."""
        mask = self.format.sign_mask
        sign = other.as_bits() & mask
        return ((self.as_bits() & ~mask) | sign).as_float(self.type)

    def with_sign_flipped_by(self, other: Value) -> Value:
        """Return this number, negated where the sign bit of `other` is set."""
        sign = other.as_bits() & self.format.sign_mask
        return (self.as_bits() ^ sign).as_float(self.type)

    def has_sign(self) -> Value:
        """Return an i1 that is true if the sign bit is set, as it is for -0."""
        return self.as_bits().compare("lt", 0)

    def at_most(self, bound: float) -> Value:
        """Return the smaller of this number and a constant; NaN stays NaN."""
        return self.compare("gt", bound).choose(bound, self)

    def at_least(self, bound: float) -> Value:
        """Return the larger of this number and a constant; NaN stays NaN."""
        return self.compare("lt", bound).choose(bound, self)


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial; the coefficient of the highest power is first."""
    total = x.const(coefficients[0])
    for c in coefficients[1:]:
        total = total.fma(x, c)
    return total


LN2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680")
LOG2_E = Fraction("1.442695040888963407359924681001892137426645954152985934135449")
LOG10_2 = Fraction("0.301029995663981195213738894724493026768189881462108541310427")
LOG10_E = Fraction("0.434294481903251827651128918916605082294397005803666566114454")
PI = Fraction("3.141592653589793238462643383279502884197169399375105820974945")
