"""Tangents and adjoints in the making: products with what is left to do to them.

A `Term` is seed * factor * coefficient. The seed is what came in; factors are gathered
beside it, so that terms with the same seed are added as factors and multiplied once.
The coefficient is multiplied when the number itself is asked for, and may have
cancelled until then. Guards are applied last of all: where they do not hold the result
is 0, whatever the product is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.ir import Attribute, SSAValue

from flexc.passes.scalar.differentiation.coefficients import ONE, Coefficient
from flexc.passes.scalar.differentiation.derivative_code import (
    DerivativeCode,
    plain_number,
)
from flexc.passes.scalar.differentiation.steps import (
    Over,
    Scaled,
    Step,
    Times,
    Where,
)

Guards = tuple[tuple[SSAValue, bool], ...]


@dataclass(frozen=True)
class Term:
    """seed * factor * coefficient where all guards are as they say, else 0."""

    seed: SSAValue
    factor: SSAValue | None = None
    """None for 1."""
    coefficient: Coefficient = ONE
    guards: Guards = ()

    def scaled(self, coefficient: Coefficient) -> Term:
        """With another coefficient."""
        return replace(self, coefficient=coefficient)


def take(code: DerivativeCode, term: Term, steps: Iterable[Step]) -> Term:
    """A term after some steps."""
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
                seed = code.insert(arith.DivfOp(term.seed, divisor))
                return replace(term, seed=seed)
            factor = code.insert(arith.DivfOp(term.factor, divisor))
            return replace(term, factor=factor)


def reseeded(code: DerivativeCode, term: Term) -> Term:
    """A term without a factor: what is to be multiplied more than once."""
    if term.factor is None:
        return term
    return replace(term, seed=code.times(term.seed, term.factor), factor=None)


def converted(code: DerivativeCode, term: Term, type_: Attribute) -> Term:
    """A term of another float type."""
    if term.seed.type == type_:
        return term
    term = reseeded(code, term)
    return replace(term, seed=code.as_type(term.seed, type_))


def coefficient_of(code: DerivativeCode, term: Term) -> SSAValue | None:
    """A term's coefficient; None for 1."""
    type_, number = term.seed.type, term.coefficient.number
    above, below = term.coefficient.numerator, term.coefficient.denominator
    value = None
    if number != 1 or below:
        value = code.number(number, type_)
    if value is not None and below:
        # First, as a division is the dearest where it cannot leave the loop.
        value = code.insert(arith.DivfOp(value, code.multiplied(below, type_)))
    if not above:
        return value
    product = code.multiplied(above, type_)
    return product if value is None else code.times(product, value)


def scale_of(code: DerivativeCode, term: Term) -> SSAValue | None:
    """factor * coefficient; None for 1.

    The coefficient is made first: it may be the same for whole rows or heads.
    """
    coefficient = coefficient_of(code, term)
    if coefficient is None or term.factor is None:
        return coefficient or term.factor
    return code.times(term.factor, coefficient)


def product(code: DerivativeCode, term: Term) -> SSAValue:
    """seed * factor * coefficient, whatever the guards."""
    scale = scale_of(code, term)
    return term.seed if scale is None else code.times(term.seed, scale)


def guarded(code: DerivativeCode, term: Term, keep: int = 0) -> Term:
    """A term of which only the first guards are left to do."""
    if len(term.guards) <= keep:
        return term
    value = product(code, term)
    zero = code.const(0.0, value.type)
    for condition, holds in reversed(term.guards[keep:]):
        yes, no = (value, zero) if holds else (zero, value)
        value = code.select(condition, yes, no)
    return Term(value, guards=term.guards[:keep])


def finished(code: DerivativeCode, term: Term) -> SSAValue:
    """The number that a term is."""
    return product(code, guarded(code, term))
