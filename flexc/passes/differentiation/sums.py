"""Sums of values times numbers, with as few multiplications as there are numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.differentiation.derivative_code import DerivativeCode

Part = tuple[Fraction, SSAValue]
"""A number times a value."""


def linear(code: DerivativeCode, parts: Iterable[Part]) -> Part | None:
    """The sum of parts; None for 0."""
    numbers: dict[SSAValue, Fraction] = {}
    for number, value in parts:
        numbers[value] = numbers.get(value, Fraction(0)) + number
    alike: dict[Fraction, list[Part]] = {}
    for value, number in numbers.items():
        if number:
            alike.setdefault(abs(number), []).append((number, value))
    sums = [_of_one_size(code, group) for group in alike.values()]
    if not sums:
        return None
    # What is multiplied by 1 need not be multiplied.
    sums.sort(key=lambda part: abs(part[0]) != 1)
    (common, result), *others = sums
    for number, value in others:
        result = _add(code, result, number / common, value)
    return common, result


def _of_one_size(code: DerivativeCode, parts: Sequence[Part]) -> Part:
    """The sum of parts whose numbers differ in sign alone."""
    (number, result), *others = sorted(parts, key=lambda part: part[0] < 0)
    for other, value in others:
        result = _add(code, result, other / number, value)
    return number, result


def _add(code: DerivativeCode, a: SSAValue, number: Fraction, b: SSAValue) -> SSAValue:
    """a + number * b"""
    if abs(number) != 1:
        b = code.insert(arith.MulfOp(b, code.number(abs(number), b.type)))
    op = arith.AddfOp if number > 0 else arith.SubfOp
    return code.insert(op(a, b))
