"""Bounds on positions as expressions, which code can be written for.

A term is an integer that depends on a row at most, and moves with it in one
direction: so its least and greatest value over a block of rows are its values at
the block's ends. Code for a term counts in 64 bits; `checks` says what must hold
of captured values, at run time, for it not to overflow there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

LARGE = 1 << 31
"""What products saturate at, and beyond every value they are compared with."""

MAX_SYMBOL = 1 << 40
"""What 64-bit values of unknown origin are checked against."""


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: int


@dataclass(frozen=True)
class Symbol:
    """A uniform value of the region."""

    value: SSAValue
    sized: bool
    """Its range is known to be small: no check."""
    least: int | None = None
    """It must be at least this, checked at run time."""


@dataclass(frozen=True)
class RowValue:
    """A value of the region that varies along rows."""

    value: SSAValue
    direction: int
    step: int | None = None
    """By how much it changes from a row to the next, where that is one number."""
    checked: tuple[Symbol, ...] = ()
    """What must pass its checks for the direction to hold."""


@dataclass(frozen=True)
class Sum:
    """left + right."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Product:
    """term * factor, for a factor that is not negative; saturates at LARGE ** 2."""

    term: Term
    factor: Constant | Symbol


@dataclass(frozen=True)
class Negative:
    """-term."""

    term: Term


@dataclass(frozen=True)
class Quotient:
    """floor(term / divisor), for a positive divisor."""

    term: Term
    divisor: Constant | Symbol


@dataclass(frozen=True)
class Choice:
    """`holds` where left <= right, else `fails`.

    Monotonic as one of the two is an infinity, which lies on the side that the
    other moves to as it nears the test's turning point.
    """

    left: Term
    right: Term
    holds: Term
    fails: Term


Term = Constant | Symbol | RowValue | Sum | Product | Negative | Quotient | Choice


class NotMonotonic(Exception):
    """A term would move both ways."""


def direction(term: Term) -> int:
    """Whether a term rises (1), falls (-1) or stays (0) from row to row."""
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
            # The branches and the test move together by construction.
            parts = (term.left, term.right, term.holds, term.fails)
            return max((direction(p) for p in parts), key=abs)


def joined(a: int, b: int) -> int:
    """The direction of a sum."""
    if a * b < 0:
        raise NotMonotonic
    return a or b


def slope(term: Term) -> int | None:
    """By how much a term changes from a row to the next, where that is one number."""
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
    """The captured and uniform values of a term."""
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


def add(left: Term, right: Term) -> Term:
    """left + right, constants folded."""
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
    """term * factor, for a factor that is not negative."""
    match term, factor:
        case _, Constant(1):
            return term
        case Constant(), Constant():
            return Constant(term.value * factor.value)
        case _:
            return Product(term, factor)


def floor_divide(term: Term, divisor: Constant | Symbol) -> Term:
    """floor(term / divisor), for a positive divisor."""
    match term, divisor:
        case _, Constant(1):
            return term
        case Constant(), Constant():
            return Constant(term.value // divisor.value)
        case _:
            return Quotient(term, divisor)


def ceil_divide(term: Term, divisor: Constant | Symbol) -> Term:
    """ceil(term / divisor), for a positive divisor."""
    return negate(floor_divide(negate(term), divisor))
