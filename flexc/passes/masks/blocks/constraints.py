"""Read the leaves of a mask's formula as constraints on sums of rows and columns.

`abs(q_idx - kv_idx) <= w` becomes two bounds of the form `q_idx - kv_idx`. A comparison
of a remainder becomes a residue of a form. Other leaves stay leaves, whose values are
then bounded by interval arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from flexc.passes.scalar.formula import AllOf, AnyOf, Formula, Leaf, formula_of
from flexc.passes.scalar.predicates import opposite, predicate_of
from flexc.passes.scalar.ranges.exact_ranges import floor_modulo, floor_quotient
from flexc.passes.scalar.variation import (
    NOTHING,
    PAIR,
    SUMMABLE,
    Along,
    Linear,
    MaskFacts,
    Terms,
)

Kind = Literal["le", "ge", "eq", "ne"]

MAX_CHOICES = 5
"""The maximum depth of nested choices (abs, min, select) that are split into cases."""


@dataclass(frozen=True)
class Bound:
    """A comparison of a sum of terms with a form that is the same for all pairs."""

    form: Terms
    kind: Kind
    limit: Linear
    origin: Leaf | None = None
    """The leaf that a bound of a position alone was read from."""


@dataclass(frozen=True)
class Residue:
    """A comparison of (sign * (sum of terms) + shift) modulo a divisor with a limit.

    The constraint is used for positive divisors only. Nothing is concluded for others.
    """

    form: Terms
    sign: Literal[1, -1]
    shift: Linear
    divisor: SSAValue | int
    kind: Kind
    limit: Linear


@dataclass(frozen=True)
class Pure:
    """A formula of rows alone, of columns alone, or of neither."""

    axis: Along
    formula: Formula


Item = Bound | Residue | Pure | Leaf


Condition = Item | AllOf["Condition"] | AnyOf["Condition"]

Test = Literal["le", "eq", "ne"]
"""The comparison of a form with 0."""


class Constraints:
    """A reader of the formulas of one mask."""

    def __init__(self, facts: MaskFacts):
        self.facts = facts

    def read(self, formula: Formula) -> Condition:
        """Return a condition that holds wherever a formula holds."""
        axis = self.facts.pair_of(formula)
        match formula:
            case AllOf():
                return AllOf(tuple(self.read(p) for p in formula.parts))
            case AnyOf() if axis == PAIR:
                return AnyOf(tuple(self.read(p) for p in formula.parts))
            case Leaf() if axis != NOTHING:
                return self._leaf(formula, axis)
            case _:
                return Pure(axis, formula)

    def _leaf(self, leaf: Leaf, axis: Along) -> Condition:
        found = self._comparison(leaf)
        if axis == PAIR:
            return leaf if found is None else found
        bounds = [] if found is None else self._bounds_of_position(found, axis)
        if not bounds:
            return Pure(axis, leaf)
        return AllOf(tuple(Bound(b.form, b.kind, b.limit, leaf) for b in bounds))

    def _bounds_of_position(self, condition: Condition, axis: Along) -> list[Bound]:
        """Return the bounds of a position if the condition consists of them, else
        [].
        """
        parts = condition.parts if isinstance(condition, AllOf) else (condition,)
        form = ((self.facts.index(axis), 1),)
        bounds = [p for p in parts if isinstance(p, Bound) and p.form == form]
        return bounds if len(bounds) == len(parts) else []

    def _comparison(self, leaf: Leaf) -> Condition | None:
        op = leaf.value.owner
        if not isinstance(op, arith.CmpiOp) or op.lhs.type == i1:
            return None
        name = predicate_of(op)
        if name[0] == "u":
            ranges = [self.facts.ranges[v] for v in op.operands]
            if not all(r.is_nonnegative for r in ranges):
                return None
        name = name if name in ("eq", "ne") else name[1:]
        if leaf.negated:
            name = opposite(name)
        a, b = (self.facts.linear(v) for v in op.operands)
        test, difference = _against_zero(name, a - b)
        return self._split(test, difference, MAX_CHOICES)

    def _split(self, test: Test, form: Linear, choices: int) -> Condition | None:
        """Return the condition that a form is <= 0, == 0 or != 0, or None."""
        for value, factor in form.terms if choices else ():
            if self.facts.pair(value) != PAIR:
                continue
            options = self._options(value)
            if options is None:
                continue
            (when_a, a), (when_b, b), extreme = options
            a, b = (form.replaced(value, x) for x in (a, b))
            one, other = (self._split(test, x, choices - 1) for x in (a, b))
            if one is None or other is None:
                return None
            if test == "le" and extreme is not None:
                # max(a, b) <= 0 needs both parts; min(a, b) <= 0 needs one.
                both = (extreme == "max") == (factor > 0)
                return AllOf((one, other)) if both else AnyOf((one, other))
            return AnyOf((AllOf((when_a, one)), AllOf((when_b, other))))
        return self._unsplit(test, form)

    def _options(self, value: SSAValue) -> Options | None:
        """Return the two cases of a value, or None.

        A case is a condition and the value's form under the condition. The third result
        is "min" or "max" if the value is the extreme of the two forms.
        """
        op = value.owner
        linear = self.facts.linear
        match op:
            case arith.MaxSIOp() | arith.MinSIOp():
                a, b = linear(op.lhs), linear(op.rhs)
                extreme = "max" if isinstance(op, arith.MaxSIOp) else "min"
            case math_dialect.AbsIOp() if self.facts.is_exact(op):
                a, extreme = linear(op.operands[0]), "max"
                b = -a
            case arith.SelectOp() if floor_modulo(value, self.facts.ranges) is None:
                a, b = linear(op.lhs), linear(op.rhs)
                return self._chosen(op.cond, a, b)
            case arith.ExtUIOp() if op.input.type == i1:
                return self._chosen(op.input, Linear(const=1), Linear())
            case _:
                return None
        first = b - a if extreme == "max" else a - b
        conditions = [self._unsplit("le", x) for x in (first, (-first).plus(1))]
        if conditions[0] is None or conditions[1] is None:
            return None
        return (conditions[0], a), (conditions[1], b), extreme

    def _chosen(self, condition: SSAValue, a: Linear, b: Linear) -> Options:
        yes, no = (self.read(formula_of(condition, n)) for n in (False, True))
        return (yes, a), (no, b), None

    def _unsplit(self, test: Test, form: Linear) -> Condition | None:
        shift = self.facts.part(form, NOTHING).plus(form.const)
        terms = tuple((v, f) for v, f in form.terms if self.facts.pair(v))
        if not terms:
            return self._constant(test, shift)
        if len(terms) == 1 and terms[0][1] in (1, -1):
            value, sign = terms[0]
            if (read := self._division(test, value, sign, shift)) is not None:
                return read
        if not self._is_moderate(terms, shift):
            return None
        return bound(test, terms, shift)

    def _constant(self, test: Test, shift: Linear) -> Condition | None:
        if shift.terms:
            return None
        holds = {"le": shift.const <= 0, "eq": shift.const == 0}
        holds["ne"] = not holds["eq"]
        return AllOf(()) if holds[test] else AnyOf(())

    def _division(
        self, test: Test, value: SSAValue, sign: int, shift: Linear
    ) -> Condition | None:
        """Return a comparison of x % s or x // s as a comparison of x, or None."""
        modulo = floor_modulo(value, self.facts.ranges)
        if modulo is not None:
            return self._residue(test, *modulo, sign, shift)
        quotient = floor_quotient(value, self.facts.ranges)
        if quotient is None or isinstance(quotient[1], SSAValue):
            return None
        dividend, divisor = self.facts.linear(quotient[0]), quotient[1]
        # Solve sign * (x // s) + shift <= 0, for either sign.
        at_most = dividend - (-shift * divisor).plus(divisor - 1)
        at_least = shift * divisor - dividend
        if test == "le":
            return self._split("le", at_most if sign > 0 else at_least, 2)
        shift = shift * sign
        low, high = dividend + shift * divisor, (-shift * divisor).plus(divisor - 1)
        inside = self._split("le", -low, 2), self._split("le", dividend - high, 2)
        outside = (
            self._split("le", low.plus(1), 2),
            self._split("le", (high - dividend).plus(1), 2),
        )
        a, b = inside if test == "eq" else outside
        if a is None or b is None:
            return None
        return AllOf((a, b)) if test == "eq" else AnyOf((a, b))

    def _residue(
        self,
        test: Test,
        dividend: SSAValue,
        divisor: SSAValue | int,
        sign: int,
        s: Linear,
    ) -> Condition | None:
        if isinstance(divisor, SSAValue):
            divides = not self.facts.pair(divisor)
            if not divides or not self.facts.ranges[divisor].within(SUMMABLE):
                return None
        inner = self.facts.linear(dividend)
        shift = self.facts.part(inner, NOTHING).plus(inner.const)
        terms = tuple((v, f) for v, f in inner.terms if self.facts.pair(v))
        if not terms or not all(map(self.facts.is_moderate, (Linear(terms), shift, s))):
            return None
        form, orientation = oriented(terms)
        kind, limit = _limit(test, sign, s)
        return Residue(form, orientation, shift, divisor, kind, limit)

    def _is_moderate(self, terms: Terms, shift: Linear) -> bool:
        """Return True if both sides of the bound can be computed without overflow."""
        facts, form = self.facts, Linear(terms)
        parts = [facts.part(form, axis) for axis in (Along.ROW, Along.COLUMN)]
        parts += [Linear((term,)) for term in facts.part(form, PAIR).terms]
        parts = [p for p in parts if p.terms]
        big = [p for p in parts if not facts.is_moderate(p)]
        big_shift = [t for t in shift.terms if not facts.is_moderate(Linear((t,)))]
        small = tuple(t for t in shift.terms if t not in big_shift)
        rest = Linear(small, shift.const)
        if any(f not in (1, -1) for p in big for _, f in p.terms):
            return False
        if any(f not in (1, -1) for _, f in big_shift) or not facts.is_moderate(rest):
            return False
        if not big:
            return len(big_shift) <= 2
        if len(parts) > 2 or any(len(p.terms) > 1 for p in big):
            return False
        return len(big_shift) <= 1 and not small and abs(rest.const) <= 1


Option = tuple[Condition, Linear]
Options = tuple[Option, Option, Literal["min", "max"] | None]


def _against_zero(name: str, difference: Linear) -> tuple[Test, Linear]:
    """Return an equivalent comparison of a form with 0, by `le`, `eq` or `ne`."""
    match name:
        case "eq":
            return "eq", difference
        case "ne":
            return "ne", difference
        case "le":
            return "le", difference
        case "lt":
            return "le", difference.plus(1)
        case "ge":
            return "le", -difference
        case _:
            return "le", (-difference).plus(1)


def oriented(terms: Terms) -> tuple[Terms, Literal[1, -1]]:
    """Return terms whose first factor is positive, and the sign that makes it so."""
    if terms[0][1] > 0:
        return terms, 1
    return (-Linear(terms)).terms, -1


def _limit(test: Test, sign: int, shift: Linear) -> tuple[Kind, Linear]:
    """Solve `sign * x + shift TEST 0` for x: return the comparison and its limit."""
    if test == "le":
        return ("le", -shift) if sign > 0 else ("ge", shift)
    return test, -shift if sign > 0 else shift


def bound(test: Test, terms: Terms, shift: Linear) -> Condition:
    """Return a bound of terms, divided by their common divisor if this is exact."""
    form, sign = oriented(terms)
    kind, limit = _limit(test, sign, shift)
    common = gcd(*(f for _, f in form))
    if common == 1 or limit.terms:
        return Bound(form, kind, limit)
    divided = tuple((v, f // common) for v, f in form)
    quotient, rest = divmod(limit.const, common)
    if kind in ("eq", "ne") and rest:
        return AnyOf(()) if kind == "eq" else AllOf(())
    up = kind == "ge" and rest != 0
    return Bound(divided, kind, Linear(const=quotient + up))
