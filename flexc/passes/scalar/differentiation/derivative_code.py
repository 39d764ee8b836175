"""Writing derivative code: equal ops once, each with the user's line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import isfinite

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, LocationAttr, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.canonicalization.constant_rules import nearest
from flexc.passes.scalar.canonicalization.region_simplifier import op_key
from flexc.passes.scalar.canonicalization.site import float_constant
from flexc.passes.scalar.scalar_code import ScalarCode


def derivative_type(type_: Attribute) -> AnyFloat:
    """What derivatives of, and by, a number of a type are computed in."""
    return f64 if type_ == f64 else f32


class DerivativeCode(ScalarCode):
    """Appends where other code does, and knows what varies.

    `varying` are values that depend on what is differentiated by; it grows with what
    is written. Of equal ops among `ops`, which are differentiated, the first is read.
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
        """The first value that is equal to this by being computed alike."""
        return self._same.get(value, value)

    def insert(self, op: Operation, name: str | None = None) -> SSAValue:
        """Insert an op of one result, or find an equal one."""
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
        """A float converted to another float type."""
        value = self.same(value)
        assert isinstance(value.type, AnyFloat)
        assert isinstance(type_, AnyFloat)
        if value.type == type_:
            return value
        if value.type.bitwidth < type_.bitwidth:
            return self.insert(arith.ExtFOp(value, type_))
        return self.insert(arith.TruncFOp(value, type_))

    def times(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a * b"""
        if plain_number(b) == -1:
            return self.insert(arith.NegfOp(a))
        return self.insert(arith.MulfOp(a, b))

    def multiplied(self, values: Sequence[SSAValue], type_: Attribute) -> SSAValue:
        """The product of values, in a type."""
        first, *others = (self.as_type(v, type_) for v in values)
        for other in others:
            first = self.times(first, other)
        return first

    def number(self, value: Fraction, type_: Attribute) -> SSAValue:
        """A constant, rounded to its type."""
        return self.insert(arith.ConstantOp(nearest(float(value), type_)))


def plain_number(value: SSAValue) -> Fraction | None:
    """A constant that may be multiplied and divided with: neither 0 nor infinite."""
    number = float_constant(value)
    if number is None or not isfinite(number) or number == 0:
        return None
    return Fraction(number)
