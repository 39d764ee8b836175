"""Values of a region, copied to another block with what they need."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import Block, Operation, SSAValue

from flexc.passes.scalar.formula import AllOf, Formula, Leaf
from flexc.passes.scalar.ranges.linear_forms import Linear
from flexc.passes.scalar.scalar_code import ScalarCode


class Copier:
    """Copies values of a mask region to another block, with what they need."""

    def __init__(self, code: ScalarCode, known: Mapping[SSAValue, SSAValue]):
        self.code, self.known = code, dict(known)

    def value(self, value: SSAValue) -> SSAValue:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._copied(value.owner)
        return found

    def _copied(self, op: Operation | Block) -> SSAValue:
        assert isinstance(op, Operation), "expected a value of known arguments"
        clone = op.clone({v: self.value(v) for v in op.operands})
        clone.location = op.location
        return self.code.insert(clone)

    def formula(self, formula: Formula) -> SSAValue:
        """Whether a formula holds."""
        code = self.code
        if isinstance(formula, Leaf):
            value = self.value(formula.value)
            if not formula.negated:
                return value
            return code.insert(arith.XOrIOp(value, code.const(-1, i1)))
        is_all = isinstance(formula, AllOf)
        total = code.const(-1 if is_all else 0, i1)
        for part in formula.parts:
            kind = arith.AndIOp if is_all else arith.OrIOp
            total = code.insert(kind(total, self.formula(part)))
        return total

    def linear(self, form: Linear) -> SSAValue:
        """The value of a form that fits i64; of a single value its own type."""
        if not form.const and [f for _, f in form.terms] == [1]:
            return self.value(form.terms[0][0])
        total = self.code.const(form.const, i64)
        for value, factor in form.terms:
            wide = self.code.int_cast(self.value(value), i64)
            total = self.code.add(
                total, self.code.mul(wide, self.code.const(factor, i64))
            )
        return total
