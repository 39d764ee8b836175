"""Build, simplify, bound, differentiate and expand the scalar code of mods.

An analysis returns a `Proof`: the value that it proved, or the reason why it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Proven(Generic[T]):
    """A result that holds for all inputs of the kernel that is compiled."""

    value: T


@dataclass(frozen=True)
class WhyNot:
    """The reason why a property was not proved. The property may hold nevertheless."""

    reason: str
    """A message to the user that names the operation at which the proof stopped."""


Proof = Proven[T] | WhyNot
