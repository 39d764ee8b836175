"""Write derivative code without duplicate ops, with locations of the user's code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import isfinite

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, LocationAttr, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects.constants import float_constant
from flexc.passes.scalar.canonicalization.constant_rules import nearest
from flexc.passes.scalar.canonicalization.region_simplifier import op_key
from flexc.passes.scalar.scalar_code import ScalarCode


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
            return self.insert(arith.NegfOp(a))
        return self.insert(arith.MulfOp(a, b))

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
