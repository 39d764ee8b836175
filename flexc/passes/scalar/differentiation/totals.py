"""Sums of terms, as far as they can be taken before anything is multiplied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.scalar.differentiation.coefficients import ONE
from flexc.passes.scalar.differentiation.derivative_code import DerivativeCode
from flexc.passes.scalar.differentiation.terms import (
    Guards,
    Term,
    guarded,
    product,
    reseeded,
    scale_of,
)

# Sums of values times numbers, with as few multiplications as there are numbers.


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


Groups = dict[Guards, list[Term]]


def total(code: DerivativeCode, terms: Iterable[Term]) -> Term | None:
    """The sum of terms of one type; None for 0."""
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
    """Guards whose last one is opposite in another group: one of the two counts."""
    return next((g for g in groups if g and _opposite(g) in groups), None)


def _choice(code: DerivativeCode, groups: Groups, guards: Guards) -> list[Term]:
    """What two groups amount to: a select in place of two and a sum."""
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
    """The guards that all begin with."""
    columns = takewhile(lambda c: len(set(c)) == 1, zip(*paths, strict=False))
    return tuple(column[0] for column in columns)


def _combined(code: DerivativeCode, terms: Sequence[Term]) -> Term | None:
    """The sum of terms with the same guards; None for 0.

    First factors of one seed are added, then what has one coefficient, then all.
    """
    terms = _added(code, terms)
    if len(terms) > 1:
        terms = _added(code, [reseeded(code, t) for t in terms])
    if len(terms) > 1:
        terms = _added(code, [_multiplied_out(code, t) for t in terms])
    return terms[0] if terms else None


def _added(code: DerivativeCode, terms: Sequence[Term]) -> list[Term]:
    """Sums of those terms that differ in one value and in a number."""
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
    """A term that is a seed with the coefficient 1 or -1."""
    sign = Fraction(1 if term.coefficient.number > 0 else -1)
    value = product(code, term.scaled(term.coefficient.scaled(sign)))
    return Term(value, None, ONE.scaled(sign), term.guards)
