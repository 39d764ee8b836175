"""Factors of derivatives that wait to be multiplied, so that they may cancel."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from xdsl.ir import SSAValue

Powers = tuple[tuple[SSAValue, int], ...]


@dataclass(frozen=True)
class Coefficient:
    """number * product of value ** power, in the order in which values came."""

    number: Fraction = Fraction(1)
    powers: Powers = ()

    def scaled(self, by: Fraction) -> Coefficient:
        return Coefficient(self.number * by, self.powers)

    def times(self, value: SSAValue, power: int = 1) -> Coefficient:
        """With one more factor, or one that cancels."""
        powers = dict(self.powers)
        powers[value] = powers.get(value, 0) + power
        left = tuple((v, p) for v, p in powers.items() if p)
        return Coefficient(self.number, left)

    def is_like(self, other: Coefficient) -> bool:
        """Whether the two differ in their numbers only."""
        return dict(self.powers) == dict(other.powers)

    def equals(self, other: Coefficient) -> bool:
        return self.is_like(other) and self.number == other.number

    @property
    def numerator(self) -> list[SSAValue]:
        """Values that are multiplied with, as often as they are."""
        return [v for v, power in self.powers for _ in range(power)]

    @property
    def denominator(self) -> list[SSAValue]:
        """Values that are divided by, as often as they are."""
        return [v for v, power in self.powers for _ in range(-power)]


ONE = Coefficient()
