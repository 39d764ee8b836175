"""Represent tangents and adjoints as products that are multiplied out late.

A `Term` is seed * factor * coefficient. The seed is the incoming tangent or adjoint.
Factors are kept apart from the seed, so that terms of the same seed add their factors
and multiply once. The coefficient is multiplied last, so that its parts can cancel
before. Guards are applied after all products: where a guard does not hold, the result
is 0, also if the product is infinite or NaN. `total` adds terms before it multiplies,
wherever possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile

from xdsl.dialects import arith
from xdsl.ir import Attribute, SSAValue

from flexc.passes.scalar.differentiation.derivative_code import (
    DerivativeCode,
    Over,
    Scaled,
    Step,
    Times,
    Where,
    plain_number,
)

Powers = tuple[tuple[SSAValue, int], ...]


@dataclass(frozen=True)
class Coefficient:
    """A number times a product of value ** power, in the order of insertion."""

    number: Fraction = Fraction(1)
    powers: Powers = ()

    def scaled(self, by: Fraction) -> Coefficient:
        return Coefficient(self.number * by, self.powers)

    def times(self, value: SSAValue, power: int = 1) -> Coefficient:
        """Return the coefficient times value ** power."""
        powers = dict(self.powers)
        powers[value] = powers.get(value, 0) + power
        left = tuple((v, p) for v, p in powers.items() if p)
        return Coefficient(self.number, left)

    def is_like(self, other: Coefficient) -> bool:
        """Return True if the coefficients differ at most in their numbers."""
        return dict(self.powers) == dict(other.powers)

    def equals(self, other: Coefficient) -> bool:
        return self.is_like(other) and self.number == other.number

    @property
    def numerator(self) -> list[SSAValue]:
        """The values with positive powers, each repeated as often as its power."""
        return [v for v, power in self.powers for _ in range(power)]

    @property
    def denominator(self) -> list[SSAValue]:
        """The values with negative powers, each repeated as often as its power."""
        return [v for v, power in self.powers for _ in range(-power)]


ONE = Coefficient()


Guards = tuple[tuple[SSAValue, bool], ...]


@dataclass(frozen=True)
class Term:
    """The product seed * factor * coefficient where all guards hold, else 0.

    A guard is a condition and the truth value that the condition must have.
    """

    seed: SSAValue
    factor: SSAValue | None = None
    """None for a factor of 1."""
    coefficient: Coefficient = ONE
    guards: Guards = ()

    def scaled(self, coefficient: Coefficient) -> Term:
        """Return the term with another coefficient."""
        return replace(self, coefficient=coefficient)


def take(code: DerivativeCode, term: Term, steps: Iterable[Step]) -> Term:
    """Return a term after some steps."""
    for step in steps:
        term = _take(code, term, step)
    return term


def _take(code: DerivativeCode, term: Term, step: Step) -> Term:
    coefficient = term.coefficient
    match step:
        case Scaled(number):
            return term.scaled(coefficient.scaled(number))
        case Where(condition, holds):
            guard = (code.same(condition), holds)
            known = guard in term.guards
            return term if known else replace(term, guards=(*term.guards, guard))
        case Times(factor):
            if (number := plain_number(factor)) is not None:
                return term.scaled(coefficient.scaled(number))
            if factor not in code.varying:
                return term.scaled(coefficient.times(factor))
            if term.factor is not None:
                factor = code.times(term.factor, factor)
            return replace(term, factor=factor)
        case Over(divisor):
            if (number := plain_number(divisor)) is not None:
                return term.scaled(coefficient.scaled(1 / number))
            if divisor not in code.varying:
                return term.scaled(coefficient.times(divisor, -1))
            if term.factor is None:
                seed = code.divf(term.seed, divisor)
                return replace(term, seed=seed)
            factor = code.divf(term.factor, divisor)
            return replace(term, factor=factor)


def reseeded(code: DerivativeCode, term: Term) -> Term:
    """Return the term with its factor multiplied into the seed, for repeated use."""
    if term.factor is None:
        return term
    return replace(term, seed=code.times(term.seed, term.factor), factor=None)


def converted(code: DerivativeCode, term: Term, type_: Attribute) -> Term:
    """Return a term of another float type."""
    if term.seed.type == type_:
        return term
    term = reseeded(code, term)
    return replace(term, seed=code.as_type(term.seed, type_))


def coefficient_of(code: DerivativeCode, term: Term) -> SSAValue | None:
    """Return a term's coefficient as a value; None for 1."""
    type_, number = term.seed.type, term.coefficient.number
    above, below = term.coefficient.numerator, term.coefficient.denominator
    value = None
    if number != 1 or below:
        value = code.number(number, type_)
    if value is not None and below:
        # Divide before multiplying: the quotient may be invariant in a loop where the
        # product is not, and divisions in a loop are expensive.
        value = code.divf(value, code.multiplied(below, type_))
    if not above:
        return value
    product = code.multiplied(above, type_)
    return product if value is None else code.times(product, value)


def scale_of(code: DerivativeCode, term: Term) -> SSAValue | None:
    """Return factor * coefficient as a value; None for 1.

    The coefficient is computed first, because it may be the same for whole rows or
    heads.
    """
    coefficient = coefficient_of(code, term)
    if coefficient is None or term.factor is None:
        return coefficient or term.factor
    return code.times(term.factor, coefficient)


def product(code: DerivativeCode, term: Term) -> SSAValue:
    """Return seed * factor * coefficient, without the guards."""
    scale = scale_of(code, term)
    return term.seed if scale is None else code.times(term.seed, scale)


def guarded(code: DerivativeCode, term: Term, keep: int = 0) -> Term:
    """Return a term in which all guards but the first `keep` are applied."""
    if len(term.guards) <= keep:
        return term
    value = product(code, term)
    zero = code.const(0.0, value.type)
    for condition, holds in reversed(term.guards[keep:]):
        yes, no = (value, zero) if holds else (zero, value)
        value = code.select(condition, yes, no)
    return Term(value, guards=term.guards[:keep])


def finished(code: DerivativeCode, term: Term) -> SSAValue:
    """Return the value of a term."""
    return product(code, guarded(code, term))


Part = tuple[Fraction, SSAValue]
"""A number times a value."""


def linear(code: DerivativeCode, parts: Iterable[Part]) -> Part | None:
    """Return the sum of parts as one part; None for 0.

    The code has one multiplication at most for each distinct absolute number.
    """
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
    # A part with the number 1 or -1 comes first: it needs no multiplication.
    sums.sort(key=lambda part: abs(part[0]) != 1)
    (common, result), *others = sums
    for number, value in others:
        result = _add(code, result, number / common, value)
    return common, result


def _of_one_size(code: DerivativeCode, parts: Sequence[Part]) -> Part:
    """Return the sum of parts whose numbers differ in sign only."""
    (number, result), *others = sorted(parts, key=lambda part: part[0] < 0)
    for other, value in others:
        result = _add(code, result, other / number, value)
    return number, result


def _add(code: DerivativeCode, a: SSAValue, number: Fraction, b: SSAValue) -> SSAValue:
    """Return a + number * b."""
    if abs(number) != 1:
        b = code.mulf(b, code.number(abs(number), b.type))
    op = arith.AddfOp if number > 0 else arith.SubfOp
    return code.insert(op(a, b))


Groups = dict[Guards, list[Term]]


def total(code: DerivativeCode, terms: Iterable[Term]) -> Term | None:
    """Return the sum of terms of one type; None for 0."""
    groups: Groups = {}
    for term in terms:
        groups.setdefault(term.guards, []).append(term)
    while (guards := _chosen(groups)) is not None:
        for term in _choice(code, groups, guards):
            groups.setdefault(term.guards, []).append(term)
    found = [_combined(code, group) for group in groups.values()]
    parts = [term for term in found if term is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    shared = len(_shared([term.guards for term in parts]))
    return _combined(code, [guarded(code, term, shared) for term in parts])


def _opposite(guards: Guards) -> Guards:
    condition, holds = guards[-1]
    return (*guards[:-1], (condition, not holds))


def _chosen(groups: Groups) -> Guards | None:
    """Return guards whose last guard is inverted in another group, else None.

    Exactly one of the two groups applies at each pair.
    """
    return next((g for g in groups if g and _opposite(g) in groups), None)


def _choice(code: DerivativeCode, groups: Groups, guards: Guards) -> list[Term]:
    """Replace two groups of opposite guards by one select, if possible.

    Return the terms that replace the groups.
    """
    condition, holds = guards[-1]
    pair = groups.pop(guards), groups.pop(_opposite(guards))
    found = [_combined(code, group) for group in pair]
    terms = [term for term in found if term is not None]
    if len(terms) < 2:
        return terms
    yes, no = terms if holds else terms[::-1]
    rest = guards[:-1]
    if yes.seed is not no.seed:
        if not yes.coefficient.equals(no.coefficient):
            yes, no = (Term(product(code, term)) for term in (yes, no))
        yes, no = (reseeded(code, term) for term in (yes, no))
        seed = code.select(condition, yes.seed, no.seed)
        return [replace(yes, seed=seed, guards=rest)]
    if not yes.coefficient.equals(no.coefficient):
        yes, no = (Term(t.seed, scale_of(code, t)) for t in (yes, no))
    if yes.factor is no.factor:
        return [replace(yes, guards=rest)]
    one = code.const(1.0, yes.seed.type)
    factor = code.select(condition, yes.factor or one, no.factor or one)
    return [replace(yes, factor=factor, guards=rest)]


def _shared(paths: Sequence[Guards]) -> Guards:
    """Return the longest common beginning of several sequences of guards."""
    columns = takewhile(lambda c: len(set(c)) == 1, zip(*paths, strict=False))
    return tuple(column[0] for column in columns)


def _combined(code: DerivativeCode, terms: Sequence[Term]) -> Term | None:
    """Return the sum of terms that have the same guards; None for 0.

    First, factors of the same seed are added, then seeds with equal powers in their
    coefficients, then everything.
    """
    terms = _added(code, terms)
    if len(terms) > 1:
        terms = _added(code, [reseeded(code, t) for t in terms])
    if len(terms) > 1:
        terms = _added(code, [_multiplied_out(code, t) for t in terms])
    return terms[0] if terms else None


def _added(code: DerivativeCode, terms: Sequence[Term]) -> list[Term]:
    """Return sums of those terms that differ in one value and in a number only."""
    groups: dict[object, list[Term]] = {}
    for term in terms:
        seed = None if term.factor is None else term.seed
        key = (seed, frozenset(term.coefficient.powers))
        groups.setdefault(key, []).append(term)
    sums: list[Term] = []
    for first, *others in groups.values():
        parts = [(t.coefficient.number, _last(t)) for t in (first, *others)]
        if (found := linear(code, parts)) is None:
            continue
        number, value = found
        term = first.scaled(replace(first.coefficient, number=number))
        which = "seed" if first.factor is None else "factor"
        sums.append(replace(term, **{which: value}))
    return sums


def _last(term: Term) -> SSAValue:
    return term.seed if term.factor is None else term.factor


def _multiplied_out(code: DerivativeCode, term: Term) -> Term:
    """Return a term without factor, with the coefficient 1 or -1."""
    sign = Fraction(1 if term.coefficient.number > 0 else -1)
    value = product(code, term.scaled(term.coefficient.scaled(sign)))
    return Term(value, None, ONE.scaled(sign), term.guards)
