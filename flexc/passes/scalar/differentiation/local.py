"""Write partial derivatives as chains of linear steps in terms of an op's values.

A partial derivative is multiplied with a tangent or with an adjoint. Chains avoid
needless ops: the chain of a sum has no steps, and the steps that all partial
derivatives of one op end in are applied once, to the sum.
"""

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
from flexc.passes.scalar.math_expansions.values import Value


@dataclass(frozen=True)
class Times:
    """The step dx -> dx * factor."""

    factor: SSAValue


@dataclass(frozen=True)
class Over:
    """The step dx -> dx / divisor."""

    divisor: SSAValue


@dataclass(frozen=True)
class Scaled:
    """The step dx -> dx * number."""

    number: Fraction


@dataclass(frozen=True)
class Where:
    """The step dx -> dx where `condition` equals `holds`, and exactly 0 elsewhere."""

    condition: SSAValue
    holds: bool = True


Step = Times | Over | Scaled | Where

Partial = tuple[Step, ...]
"""Steps in the order that a tangent takes; an adjoint takes the steps in reverse."""

SAME: Partial = ()
NEGATED: Partial = (Scaled(Fraction(-1)),)


@dataclass(frozen=True)
class Local:
    """An op of one float result, and the place of code that reads the op's values.

    All values are converted to the type that derivatives by the result are computed in.
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
        """Return True if a value depends on the differentiated variables."""
        return ssa in self.code.varying


Formula = Callable[[Local], Partial]

Input = tuple[SSAValue, Formula]
"""A value that an op is a function of, and the formula of the derivative by the
value.
"""


def of_operands(*formulas: Formula) -> Callable[[Operation], Sequence[Input]]:
    """Return the rule of an op that is a function of its first operands.

    `formulas` are the partial derivatives by these operands, in order.
    """

    def rule(op: Operation) -> Sequence[Input]:
        return list(zip(op.operands, formulas, strict=False))

    return rule


def constant(op: Operation) -> Sequence[Input]:
    """Return no inputs: the derivative is zero wherever it exists."""
    return ()


def times(factor: Value) -> Partial:
    return (Times(factor.ssa),)


def over(divisor: Value) -> Partial:
    return (Over(divisor.ssa),)


def scaled(number: float | Fraction) -> Partial:
    return (Scaled(Fraction(number)),)


def with_sign(magnitude: Value, sign: Value) -> Value:
    """Return C's copysign of the two values."""
    return magnitude.apply(math.CopySignOp, sign)


def rsqrt(x: Value) -> Value:
    return x.apply(math.RsqrtOp)
