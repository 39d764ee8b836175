"""What is known of positions: bounds and conditions, in alternatives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flexc.passes.masks.bounds.terms import Term
from flexc.passes.scalar.dependence import PAIR, Along
from flexc.passes.scalar.formula import Leaf


@dataclass(frozen=True)
class KeyBound:
    """kv_idx <= term (`upper`), or kv_idx >= term."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class RowBound:
    """q_idx <= term (`upper`), or q_idx >= term; the term is uniform."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class Condition:
    """A uniform comparison, left <= right, or a uniform value of type i1."""

    leaf: Leaf


@dataclass(frozen=True)
class Skipped:
    """What was not understood, or repeats so often that every block has some.

    `period` says that it holds for one of any so many neighbouring positions
    `along`, and fails for another.
    """

    reason: str
    period: int | None = None
    along: Along = PAIR


Atom = KeyBound | RowBound | Condition | Skipped
Alternatives = list[list[Atom]]
"""Of which one holds, with all its atoms."""


def some(found: Iterable[Alternatives]) -> Alternatives:
    """Where one of several conditions holds, each with alternatives of its own."""
    return [case for condition in found for case in condition]


def every(found: Iterable[Alternatives]) -> Alternatives:
    """Where all of several conditions hold."""
    cases: Alternatives = [[]]
    for condition in found:
        cases = [a + b for a in cases for b in condition]
    return cases
