"""Partial derivatives as chains of linear steps.

A partial derivative is multiplied with a tangent or with an adjoint. Spelled as steps
it costs what it must: that of a sum is no step at all, and the steps that the partials
of one op end in are taken once, of their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from xdsl.ir import SSAValue


@dataclass(frozen=True)
class Times:
    """dx -> dx * factor"""

    factor: SSAValue


@dataclass(frozen=True)
class Over:
    """dx -> dx / divisor"""

    divisor: SSAValue


@dataclass(frozen=True)
class Scaled:
    """dx -> dx * number"""

    number: Fraction


@dataclass(frozen=True)
class Where:
    """dx -> dx where the condition is as it `holds`, elsewhere exactly 0."""

    condition: SSAValue
    holds: bool = True


Step = Times | Over | Scaled | Where

Partial = tuple[Step, ...]
"""Steps in the order in which a tangent takes them; an adjoint takes the last first."""

SAME: Partial = ()
NEGATED: Partial = (Scaled(Fraction(-1)),)
