"""Represent bounds on positions as expressions, from which code is written.

A term is an integer that depends at most on the row. It is monotonic in the row, so its
extremes over a block of rows are its values at the block's first and last row. Code for
a term computes in 64 bits. Some captured values must be checked at run time, so that
the code does not overflow (`TermCode.checks`). Atoms are bounds and conditions on
positions. Alternatives are disjunctions of conjunctions of atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from flexc.dialects.flex import RemainderAttr
from flexc.passes.scalar.formula import Leaf

LARGE = 1 << 31
"""The limit to which operands of products are clamped. All values that products are
compared with are smaller.
"""

MAX_SYMBOL = 1 << 37
"""The limit for the run-time check of 64-bit values of unknown origin.

Products with positions below 2^24 can be added.
"""


@dataclass(frozen=True)
class Constant:
    """An integer that is known at compile time."""

    value: int


@dataclass(frozen=True)
class Symbol:
    """A value of the region that is the same for all pairs of a head."""

    value: SSAValue
    sized: bool
    """True if the value is known to be small, so that its size needs no check."""
    least: int | None = None
    """A lower limit of the value, checked at run time."""


@dataclass(frozen=True)
class RowValue:
    """A value of the region that varies with the row."""

    value: SSAValue
    direction: int
    step: int | None = None
    """The change of the value from a row to the next, if constant."""
    checked: tuple[Symbol, ...] = ()
    """Symbols that must pass their checks for the direction to hold."""


@dataclass(frozen=True)
class Sum:
    """The sum left + right."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Product:
    """The product term * factor, for a nonnegative factor; saturates at LARGE ** 2."""

    term: Term
    factor: Constant | Symbol


@dataclass(frozen=True)
class Negative:
    """The negated term."""

    term: Term


@dataclass(frozen=True)
class Quotient:
    """The quotient floor(term / divisor), for a positive divisor."""

    term: Term
    divisor: Constant | Symbol


@dataclass(frozen=True)
class Choice:
    """The term `holds` if left <= right, else the term `fails`.

    One branch is plus or minus infinity. The choice is monotonic, because the other
    branch moves towards that infinity as the row nears the test's turning point.
    """

    left: Term
    right: Term
    holds: Term
    fails: Term


Term = Constant | Symbol | RowValue | Sum | Product | Negative | Quotient | Choice


class NotMonotonic(Exception):
    """The error for a term that would both rise and fall."""


def direction(term: Term) -> int:
    """Return 1 if a term rises from row to row, -1 if it falls, 0 if it is constant."""
    match term:
        case Constant() | Symbol():
            return 0
        case RowValue():
            return term.direction
        case Sum():
            return joined(direction(term.left), direction(term.right))
        case Product() | Quotient():
            return direction(term.term)
        case Negative():
            return -direction(term.term)
        case Choice():
            # The branches and the test move in the same direction by construction.
            parts = (term.left, term.right, term.holds, term.fails)
            return max((direction(p) for p in parts), key=abs)


def joined(a: int, b: int) -> int:
    """Return the direction of a sum; raise NotMonotonic for opposite directions."""
    if a * b < 0:
        raise NotMonotonic
    return a or b


def slope(term: Term) -> int | None:
    """Return the change of a term from a row to the next, if constant, else None."""
    match term:
        case Constant() | Symbol():
            return 0
        case RowValue():
            return term.step
        case Sum():
            left, right = slope(term.left), slope(term.right)
            return None if left is None or right is None else left + right
        case Product(factor=Constant() as factor):
            inner = slope(term.term)
            return None if inner is None else inner * factor.value
        case Negative():
            inner = slope(term.term)
            return None if inner is None else -inner
        case _:
            return 0 if direction(term) == 0 else None


def symbols(term: Term) -> Iterator[Symbol]:
    """Yield the symbols of a term."""
    match term:
        case Symbol():
            yield term
        case RowValue():
            yield from term.checked
        case Sum():
            yield from symbols(term.left)
            yield from symbols(term.right)
        case Product():
            yield from symbols(term.term)
            yield from symbols(term.factor)
        case Quotient():
            yield from symbols(term.term)
            yield from symbols(term.divisor)
        case Negative():
            yield from symbols(term.term)
        case Choice():
            for part in (term.left, term.right, term.holds, term.fails):
                yield from symbols(part)
        case _:
            return


def addends(term: Term, sign: int = 1) -> Iterator[tuple[Term, int]]:
    """Yield the addends of a term, with signs."""
    match term:
        case Sum():
            yield from addends(term.left, sign)
            yield from addends(term.right, sign)
        case Negative():
            yield from addends(term.term, -sign)
        case _:
            yield term, sign


def add(left: Term, right: Term) -> Term:
    """Return left + right, with constants folded."""
    match left, right:
        case Constant(), Constant():
            return Constant(left.value + right.value)
        case Constant(0), _:
            return right
        case _, Constant(0):
            return left
        case Sum(inner, Constant() as a), Constant():
            return add(inner, Constant(a.value + right.value))
        case _:
            joined(direction(left), direction(right))
            return Sum(left, right)


def negate(term: Term) -> Term:
    match term:
        case Constant():
            return Constant(-term.value)
        case Negative():
            return term.term
        case Sum():
            return add(negate(term.left), negate(term.right))
        case _:
            return Negative(term)


def multiply(term: Term, factor: Constant | Symbol) -> Term:
    """Return term * factor, for a nonnegative factor."""
    match term, factor:
        case _, Constant(1):
            return term
        case Constant(), Constant():
            return Constant(term.value * factor.value)
        case _:
            return Product(term, factor)


def floor_divide(term: Term, divisor: Constant | Symbol) -> Term:
    """Return floor(term / divisor), for a positive divisor."""
    match term, divisor:
        case _, Constant(1):
            return term
        case Constant(), Constant():
            return Constant(term.value // divisor.value)
        case _:
            return Quotient(term, divisor)


def ceil_divide(term: Term, divisor: Constant | Symbol) -> Term:
    """Return ceil(term / divisor), for a positive divisor."""
    return negate(floor_divide(negate(term), divisor))


@dataclass(frozen=True)
class KeyBound:
    """The bound kv_idx <= term (`upper`), or kv_idx >= term."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class RowBound:
    """The bound q_idx <= term (`upper`), or q_idx >= term; the term is uniform."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class Condition:
    """A uniform value of type i1, or its negation."""

    leaf: Leaf


@dataclass(frozen=True)
class Unsolved:
    """A condition that was not solved, and is taken to hold."""

    reason: str
    remainder: RemainderAttr | None = None
    """The condition as a periodic test; None if the condition may hold anywhere."""


Atom = KeyBound | RowBound | Condition | Unsolved
Alternatives = list[list[Atom]]
"""Conjunctions of atoms, of which at least one holds."""


def disjunction(found: Iterable[Alternatives]) -> Alternatives:
    """Return the disjunction of several alternatives."""
    return [case for condition in found for case in condition]


def conjunction(found: Iterable[Alternatives]) -> Alternatives:
    """Return the conjunction of several alternatives, as alternatives."""
    cases: Alternatives = [[]]
    for condition in found:
        cases = [a + b for a in cases for b in condition]
    return cases
