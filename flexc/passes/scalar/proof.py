"""What an analysis answers: proven, with what was found, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Proven(Generic[T]):
    """Holds for all inputs of the kernel that is being made."""

    value: T


@dataclass(frozen=True)
class WhyNot:
    """Was not proved, which says nothing about whether it holds."""

    reason: str
    """For the user: names the operation that the proof stopped at."""


Proof = Proven[T] | WhyNot
