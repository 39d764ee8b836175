"""Write derivative code without duplicate ops, with locations of the user's code.

A partial derivative is a chain of linear steps in terms of an op's values. It is
multiplied with a tangent or with an adjoint. Chains avoid needless ops: the chain of a
sum has no steps, and the steps that all partial derivatives of one op end in are
applied once, to the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, LocationAttr, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects.constants import float_constant, nearest
from flexc.passes.scalar.math_expansions.values import Value
from flexc.passes.scalar.scalar_code import ScalarCode, op_key


def derivative_type(type_: Attribute) -> AnyFloat:
    """Return the type of derivatives of, and by, a number of type `type_`."""
    return f64 if type_ == f64 else f32


class DerivativeCode(ScalarCode):
    """A builder that appends at the place of `code` and tracks values that vary.

    `varying` has the values that depend on the differentiated variables; results of
    inserted ops are added. `ops` is the code to differentiate. An inserted op that
    equals an op of `ops`, or an inserted one, is replaced by the earlier op.
    """

    def __init__(
        self, code: ScalarCode, varying: Iterable[SSAValue], ops: Iterable[Operation]
    ):
        self.builder = code.builder
        self.varying = set(varying)
        self.location: LocationAttr | None = None
        self._known: dict[object, SSAValue] = {}
        self._same: dict[SSAValue, SSAValue] = {}
        for op in ops:
            if len(op.results) == 1:
                key = op_key(op, map(self.same, op.operands))
                (result,) = op.results
                self._same[result] = self._known.setdefault(key, result)

    def same(self, value: SSAValue) -> SSAValue:
        """Return the first value that is computed like this one, by equal ops."""
        return self._same.get(value, value)

    def insert(self, op: Operation, name: str | None = None) -> SSAValue:
        """Insert an op that has one result, or reuse an equal op. Return the result."""
        op.operands = [self.same(v) for v in op.operands]
        found = self._known.get(key := op_key(op))
        if found is not None:
            op.erase()
            return found
        if self.location is not None:
            op.location = self.location
        result = self._known[key] = super().insert(op, name)
        if any(v in self.varying for v in op.operands):
            self.varying.add(result)
        return result

    def as_type(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """Return a float converted to another float type."""
        value = self.same(value)
        assert isinstance(value.type, AnyFloat)
        assert isinstance(type_, AnyFloat)
        if value.type == type_:
            return value
        if value.type.bitwidth < type_.bitwidth:
            return self.insert(arith.ExtFOp(value, type_))
        return self.insert(arith.TruncFOp(value, type_))

    def times(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return a * b."""
        if plain_number(b) == -1:
            return self.negf(a)
        return self.mulf(a, b)

    def multiplied(self, values: Sequence[SSAValue], type_: Attribute) -> SSAValue:
        """Return the product of values, converted to a type."""
        first, *others = (self.as_type(v, type_) for v in values)
        for other in others:
            first = self.times(first, other)
        return first

    def number(self, value: Fraction, type_: Attribute) -> SSAValue:
        """Return a constant, rounded to its type."""
        return self.insert(arith.ConstantOp(nearest(float(value), type_)))


def plain_number(value: SSAValue) -> Fraction | None:
    """Return a constant that is neither 0 nor infinite nor NaN, else None."""
    number = float_constant(value)
    if number is None or not isfinite(number) or number == 0:
        return None
    return Fraction(number)


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
