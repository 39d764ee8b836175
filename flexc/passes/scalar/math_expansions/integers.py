"""Expand integer operations. All expansions are exact."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import Attribute, Operation

from flexc.dialects.constants import int_constant
from flexc.passes.scalar.math_expansions.values import Value


def floor_divide(x: Value, y: Value) -> Value:
    """Return the quotient rounded down."""
    quotient = x / y
    rest = x - quotient * y
    lower = rest.compare("ne", 0) & (rest ^ y).compare("lt", 0)
    return lower.choose(quotient - 1, quotient)


def ceil_divide(x: Value, y: Value) -> Value:
    """Return the quotient rounded up."""
    quotient = x / y
    rest = x - quotient * y
    higher = rest.compare("ne", 0) & (rest ^ y).compare("ge", 0)
    return higher.choose(quotient + 1, quotient)


def ceil_divide_unsigned(x: Value, y: Value) -> Value:
    """Return the quotient of unsigned numbers rounded up."""
    quotient = x.apply(arith.DivUIOp, y)
    rest = x - quotient * y
    return rest.compare("ne", 0).choose(quotient + 1, quotient)


def minimum_unsigned(x: Value, y: Value) -> Value:
    """Return the smaller of two unsigned numbers."""
    return x.compare("ult", y).choose(x, y)


def maximum_unsigned(x: Value, y: Value) -> Value:
    """Return the larger of two unsigned numbers."""
    return x.compare("ugt", y).choose(x, y)


def to_unsigned(x: Value, type_: Attribute) -> Value:
    """Expand `fptoui` by way of signed integers."""
    if type_ == i1:
        return x.cast(arith.FPToSIOp, i32).compare("ne", 0)
    if type_ != i64:
        wide = x.cast(arith.FPToSIOp, i64 if type_ == i32 else i32)
        return wide.cast(arith.TruncIOp, type_)
    half = 2.0**63
    high = (x - half).cast(arith.FPToSIOp, i64) ^ (-(2**63))
    return x.compare("ge", half).choose(high, x.cast(arith.FPToSIOp, i64))


def on_words(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """Return a function that counts bits of narrow integers as 32-bit integers."""

    def counted(x: Value) -> Value:
        if x.width >= 32:
            return function(x)
        wide = x.cast(arith.ExtUIOp, i32)
        return function(wide).cast(arith.TruncIOp, x.type)

    return counted


def _repeated(byte: int, width: int) -> int:
    """Return an integer whose bytes are all `byte`, read as signed."""
    value = int.from_bytes(bytes([byte]) * (width // 8), "little")
    return value - (1 << width) if value >> (width - 1) else value


def _logical_shift(x: Value, by: int) -> Value:
    return x.apply(arith.ShRUIOp, by)


def count_ones(x: Value) -> Value:
    """Count the set bits, in all fields of 2, 4 and 8 bits at once."""
    pairs, fours, bytes_ = (_repeated(b, x.width) for b in (0x55, 0x33, 0x0F))
    x = x - (_logical_shift(x, 1) & pairs)
    x = (x & fours) + (_logical_shift(x, 2) & fours)
    x = (x + _logical_shift(x, 4)) & bytes_
    return _logical_shift(x * _repeated(0x01, x.width), x.width - 8)


def count_leading_zeros(x: Value) -> Value:
    """Count the zeros above the highest set bit."""
    width = x.width
    if width < 32:
        wide = count_leading_zeros(x.cast(arith.ExtUIOp, i32))
        return (wide - (32 - width)).cast(arith.TruncIOp, x.type)
    by = 1
    while by < width:
        x = x | _logical_shift(x, by)
        by *= 2
    return count_ones(x ^ -1)


def count_trailing_zeros(x: Value) -> Value:
    """Count the zeros below the lowest set bit."""
    return on_words(count_ones)((x & -x) - 1)


def power(x: Value, n: Value) -> Value:
    """Return x ** n by squaring; for negative n, 1 / x ** -n rounded towards zero."""
    if (constant := int_constant(n.ssa)) is not None and constant >= 0:
        return power_of_constant(x, constant)
    result = x.const(1)
    square = x
    for bit in range(x.width - 1):
        odd = (n & (1 << bit)).compare("ne", 0)
        result = odd.choose(result * square, result)
        if bit < x.width - 2:
            square = square * square
    odd = (n & 1).compare("ne", 0)
    sign = odd.choose(-1, x.const(1))
    inverse = x.compare("eq", -1).choose(sign, x.const(0))
    inverse = x.compare("eq", 1).choose(1, inverse)
    return n.compare("lt", 0).choose(inverse, result)


def power_of_constant(x: Value, n: int) -> Value:
    """Return x ** n for n >= 0, by squaring."""
    result: Value | None = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return x.const(1) if result is None else result


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    arith.FloorDivSIOp: floor_divide,
    arith.CeilDivSIOp: ceil_divide,
    arith.CeilDivUIOp: ceil_divide_unsigned,
    arith.MinUIOp: minimum_unsigned,
    arith.MaxUIOp: maximum_unsigned,
    math_dialect.CtPopOp: on_words(count_ones),
    math_dialect.CountLeadingZerosOp: count_leading_zeros,
    math_dialect.CountTrailingZerosOp: count_trailing_zeros,
    math_dialect.IPowIOp: power,
}
