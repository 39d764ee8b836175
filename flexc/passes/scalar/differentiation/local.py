"""Where a partial derivative is written: an op's operands and result as formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from xdsl.dialects import math
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.differentiation.derivative_code import (
    DerivativeCode,
    derivative_type,
)
from flexc.passes.scalar.differentiation.steps import (
    Over,
    Partial,
    Scaled,
    Times,
)
from flexc.passes.scalar.math_expansions.values import Value


@dataclass(frozen=True)
class Local:
    """An op of one float result, and where code is written that reads it.

    All values are seen in the type that derivatives by the result are computed in.
    """

    code: DerivativeCode
    op: Operation

    @property
    def type(self) -> AnyFloat:
        return derivative_type(self.op.results[0].type)

    def value(self, ssa: SSAValue) -> Value:
        return Value(self.code, self.code.as_type(ssa, self.type))

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.value(self.op.operands[0])

    @property
    def y(self) -> Value:
        """The second operand."""
        return self.value(self.op.operands[1])

    @property
    def result(self) -> Value:
        return self.value(self.op.results[0])

    def varies(self, ssa: SSAValue) -> bool:
        """Whether a value depends on what is differentiated by."""
        return ssa in self.code.varying


Formula = Callable[[Local], Partial]

Input = tuple[SSAValue, Formula]
"""A value that an op is seen as a function of, and the derivative by it."""


def of_operands(*formulas: Formula) -> Callable[[Operation], Sequence[Input]]:
    """The rule of an op that is a function of its first operands."""

    def rule(op: Operation) -> Sequence[Input]:
        return list(zip(op.operands, formulas, strict=False))

    return rule


def constant(op: Operation) -> Sequence[Input]:
    """The rule of an op whose derivative is zero wherever there is one."""
    return ()


def times(factor: Value) -> Partial:
    return (Times(factor.ssa),)


def over(divisor: Value) -> Partial:
    return (Over(divisor.ssa),)


def scaled(number: float | Fraction) -> Partial:
    return (Scaled(Fraction(number)),)


def with_sign(magnitude: Value, sign: Value) -> Value:
    """C's copysign."""
    return magnitude.apply(math.CopySignOp, sign)


def rsqrt(x: Value) -> Value:
    return x.apply(math.RsqrtOp)
