"""Expressions of generated mods, and how far two evaluations of one may differ.

Every value knows its bounds and its error, so that a mod that is generated stays
finite and its score can be held to a derived tolerance, whatever its shape.

The error of a real value is `lip * d + eps * u + tanh * t + fixed`, where

- d is the error of the score that the mod receives and `lip` bounds the
  derivative with respect to it;
- u is the rounding unit of the scores' type and `eps` counts roundings of values
  that depend on the score, each weighted with the value's magnitude and with the
  derivatives of what is applied to it;
- t is the error of a target's tanh where that is more than roundings, and `tanh`
  counts those, weighted in the same way;
- `fixed` is what two evaluations in float32 (or in half precision) of values
  that do not depend on the score may differ by.

Integers, booleans and reals with a `grain` are exact: two evaluations agree to the
bit. Only those may be compared, rounded or turned into integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cosh, e, exp, log, log1p, log2, sqrt

EPS32 = 2.0**-23

ROUNDINGS = 6
"""Roundings, of half a unit each, that one op's formula may take: twice three."""

MAX_REAL = 64.0
MAX_INT = 1 << 16
MAX_GRAIN = 12


@dataclass(frozen=True)
class Int:
    """An integer, of at least 32 bits, from `low` to `high`."""

    text: str
    low: int
    high: int


@dataclass(frozen=True)
class Bool:
    """A condition, of integers or exact reals."""

    text: str


@dataclass(frozen=True)
class Real:
    """A number with |x| <= bound."""

    text: str
    bound: float
    fixed: float = 0.0
    eps: float = 0.0
    lip: float = 0.0
    unit: float | None = EPS32
    """Of its type; None where it has the type of the score."""
    grain: int | None = None
    """Exact, and a multiple of 2**-grain; None where it is rounded."""
    tanh: float = 0.0

    @property
    def is_wide(self) -> bool:
        """Not of half precision."""
        return self.unit is None or self.unit <= EPS32

    def error(self, delta: float, unit: float, tanh: float = 0.0) -> float:
        """Given the error of the score, the unit of its type, and that of tanh."""
        return self.lip * delta + self.eps * unit + self.tanh * tanh + self.fixed


def common_unit(values: Sequence[Real]) -> float | None:
    """Of the type that values are promoted to."""
    units = {v.unit for v in values}
    if None in units:
        return None
    return units.pop() if len(units) == 1 else EPS32


def rounded(
    text: str, bound: float, *terms: tuple[Real, float], own_tanh: float = 0.0
) -> Real:
    """The result of an op; `terms` are operands with the derivatives by them."""
    unit = common_unit([v for v, _ in terms])
    fixed = sum(v.fixed * d for v, d in terms)
    eps = sum(v.eps * d for v, d in terms)
    lip = sum(v.lip * d for v, d in terms)
    tanh = sum(v.tanh * d for v, d in terms) + own_tanh
    own = ROUNDINGS * max(1.0, bound)
    if unit is None:
        eps += own
    else:
        fixed += own * unit
    return Real(text, bound, fixed, eps, lip, unit, None, tanh)


def either(text: str, *values: Real) -> Real:
    """One of several values, as it is."""
    grains = [v.grain for v in values]
    exact = [g for g in grains if g is not None]
    return Real(
        text,
        max(v.bound for v in values),
        max(v.fixed for v in values),
        max(v.eps for v in values),
        max(v.lip for v in values),
        common_unit(values),
        max(exact) if len(exact) == len(grains) else None,
        max(v.tanh for v in values),
    )


@dataclass(frozen=True)
class Function:
    """A function of one real: its text, derivative and bound for |x| <= b."""

    text: str
    derivative: Callable[[float], float]
    bound: Callable[[float], float]
    limit: float = MAX_REAL
    """Up to which b its values stay moderate."""
    tanh: Callable[[float], float] = lambda b: 0.0
    """Bounds its derivative by a tanh that its formula has."""


def _const(x: float) -> Callable[[float], float]:
    return lambda b: x


def _same(b: float) -> float:
    return b


FUNCTIONS = (
    Function("-{x}", _const(1), _same),
    Function("{x}.abs()", _const(1), _same),
    Function("torch.tanh({x})", _const(1), _const(1), tanh=_const(1)),
    Function("torch.sigmoid({x})", _const(0.25), _const(1)),
    Function("torch.sin({x})", _const(1), _const(1)),
    Function("torch.cos({x})", _const(1), _const(1)),
    Function("torch.tan(torch.tanh({x}))", _const(3.5), _const(1.6), tanh=_const(3.5)),
    Function("torch.exp({x})", exp, exp, 3),
    Function("torch.exp(-{x}.abs())", _const(1), _const(1)),
    Function("torch.exp2({x})", lambda b: 2**b, lambda b: 2**b, 4),
    Function("torch.expm1({x})", exp, exp, 3),
    Function("torch.log({x}.abs() + 1)", _const(1), lambda b: log1p(b)),
    Function("torch.log2({x}.abs() + 1)", _const(1.5), lambda b: log2(1 + b)),
    Function("torch.log1p({x}.abs())", _const(1), lambda b: log1p(b)),
    Function("torch.sqrt({x}.abs() + 0.5)", _const(1), lambda b: sqrt(b + 1)),
    Function("torch.rsqrt({x}.abs() + 1)", _const(0.5), _const(1)),
    Function("torch.reciprocal({x}.abs() + 1)", _const(1), _const(1)),
    Function("torch.erf({x})", _const(1.2), _const(1)),
    Function("torch.erfc({x})", _const(1.2), _const(2)),
    Function("F.gelu({x})", _const(1.2), _same),
    Function('F.gelu({x}, approximate="tanh")', _const(1.2), _same,
             tanh=lambda b: b / 2),
    Function("F.silu({x})", _const(1.2), _same),
    Function("F.relu({x})", _const(1), _same),
    Function("F.relu6({x})", _const(1), _const(6)),
    Function("F.leaky_relu({x}, 0.1)", _const(1), _same),
    Function("F.elu({x})", _const(1), _same),
    Function("F.softplus({x})", _const(1), lambda b: b + 1),
    Function("F.logsigmoid({x})", _const(1), lambda b: b + 1),
    Function("F.softsign({x})", _const(1), _const(1)),
    Function("F.mish({x})", _const(1.2), _same, tanh=_same),
    Function("F.hardtanh({x})", _const(1), _const(1)),
    Function("F.hardswish({x})", _const(1.5), _same),
    Function("torch.atan({x})", _const(1), _const(1.6)),
    Function("torch.asinh({x})", _const(1), lambda b: log(2 * b + 2)),
    Function("torch.asin(0.9 * torch.tanh({x}))", _const(2.1), _const(1.2),
             tanh=_const(2.1)),
    Function("torch.acos(0.9 * torch.tanh({x}))", _const(2.1), _const(2.8),
             tanh=_const(2.1)),
    Function("torch.atanh(0.9 * torch.tanh({x}))", _const(4.8), _const(1.5),
             tanh=_const(4.8)),
    Function("torch.sinh({x})", cosh, cosh, 3),
    Function("torch.cosh({x})", cosh, cosh, 3),
    Function("torch.square({x})", lambda b: 2 * b, lambda b: b * b, 8),
    Function("{x} ** 2", lambda b: 2 * b, lambda b: b * b, 8),
    Function("{x} ** 3", lambda b: 3 * b * b, lambda b: b**3, 4),
    Function("({x}.abs() + 0.5) ** 1.5", lambda b: 1.5 * sqrt(b + 0.5),
             lambda b: (b + 0.5) ** 1.5, 12),
    Function("({x}.abs() + 1) ** -2", _const(2), _const(1)),
    Function("2.0 ** {x}", lambda b: 2**b, lambda b: 2**b, 4),
    Function("torch.logaddexp({x}, -{x})", _const(2), lambda b: b + 1),
    Function("torch.hypot({x}, {x} + 1)", _const(2), lambda b: 1.5 * b + 1),
    Function("torch.atan2({x}, {x}.abs() + 1)", _const(2), _const(1.6)),
    Function("torch.clamp({x}, -2.5, 1.5)", _const(1), _const(2.5)),
    Function("{x}.clamp(min=-0.75)", _const(1), _same),
    Function("torch.nan_to_num({x})", _const(1), _same),
    Function("torch.lerp({x}, -{x}, 0.25)", _const(2), _same),
    Function("torch.addcmul({x}, {x}, {x}, value=0.5)", lambda b: 1 + b,
             lambda b: b + b * b / 2, 8),
    Function("torch.addcdiv({x}, {x}, {x}.abs() + 1)", _const(3), lambda b: b + 1),
    Function("20 * torch.tanh({x} / 20)", _const(1), _const(20), tanh=_const(20)),
    Function("torch.where({x} > 0, {x}, torch.exp({x}) - 1)", _const(e), _same),
)  # fmt: skip
"""Continuous everywhere, with derivatives that |x| <= b bounds."""

ROUNDING_FUNCTIONS = (
    "torch.floor({x})", "torch.ceil({x})", "torch.round({x})", "torch.trunc({x})",
    "torch.sign({x})", "torch.frac({x})", "torch.remainder({x}, 2.5)",
    "torch.fmod({x}, 1.5)", "{x} // 0.75", "{x} % -1.25",
    'torch.div({x}, 0.5, rounding_mode="trunc")',
)  # fmt: skip
"""Exact on exact numbers, and continuous on none."""
