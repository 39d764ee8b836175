"""Score mods with infinite scores, NaN, and overflow on the way to a score."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.support.reference import Reference, attention

LENGTH = 40
INF, NAN = math.inf, math.nan
LOWEST = torch.finfo(torch.float32).min

ScoreMod = Callable[..., Tensor]


def added(by_row: bool = False, **places: float) -> ScoreMod:
    """Adds what is named to some keys, or rows, and nothing to others."""
    bias = torch.zeros(LENGTH)
    for place, value in places.items():
        bias[int(place[1:])] = value
    if by_row:
        return lambda s, b, h, q, k: s + bias[q]
    return lambda s, b, h, q, k: s + bias[k]


def everywhere(value: float) -> ScoreMod:
    bias = torch.full((LENGTH,), value)
    return lambda s, b, h, q, k: s + bias[k]


HUGE, LARGE, LOW = 1e38, 1e5, -1e38
TINY = 1.25e-38  # Not below the least normal number, which kernels take for 0.
SLOPES = torch.tensor([1e38, -1e38])

MODS: dict[str, ScoreMod] = {
    "constants": lambda s, b, h, q, k: s * 1e38 * 1e5,
    "negative": lambda s, b, h, q, k: s * -1e38 * 1e5,
    "inner": lambda s, b, h, q, k: 1e5 * (s * 1e38),
    "all inner": lambda s, b, h, q, k: 1e5 * (s.abs() * 1e38),
    "all negative": lambda s, b, h, q, k: -1e5 * (s.abs() * 1e38),
    "and back": lambda s, b, h, q, k: s * 1e9 * 1e30 * 1e-10 * 1e-9,
    "small steps": lambda s, b, h, q, k: (
        s * 1e8 * 1e8 * 1e8 * 1e8 * 1e8 * 1e-8 * 1e-8 * 1e-8 * 1e-8
    ),
    "numbers": lambda s, b, h, q, k: s * HUGE * LARGE,
    "numbers that cancel": lambda s, b, h, q, k: s * HUGE * TINY,
    "numbers that hide": lambda s, b, h, q, k: s * LARGE * HUGE * TINY,
    "divided": lambda s, b, h, q, k: s / 1.25e-38 * 1e-2,
    "divided twice": lambda s, b, h, q, k: s / TINY / LARGE,
    "capped": lambda s, b, h, q, k: 20 * torch.tanh(s * 1e38 * 1e5 / 20),
    "cap that hides": lambda s, b, h, q, k: LARGE * torch.tanh(s * HUGE / LARGE),
    "clamped": lambda s, b, h, q, k: torch.clamp(s * 1e38 * 1e5, -3, 3),
    "infinity": added(k5=INF),
    "some": added(k5=INF, k17=INF, k39=INF),
    "NaN": added(k33=NAN),
    "NaN after": added(k5=INF, k33=NAN),
    "NaN before": added(k5=NAN, k33=INF),
    "masked": added(k2=-INF, k30=-INF),
    "both signs": added(k5=-INF, k33=INF),
    "all masked": everywhere(-INF),
    "all lowest": everywhere(LOWEST),
    "all highest": everywhere(-LOWEST),
    "rows": added(True, q3=INF, q4=-INF, q5=NAN),
    "rows of lowest": added(True, q6=LOWEST, q7=-LOWEST),
    "slopes": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "flags": lambda s, b, h, q, k: s - 1e38 * (k > q),
    "low flags": lambda s, b, h, q, k: s + LOW * (k > q),
    "chosen": lambda s, b, h, q, k: torch.where(k == q, INF, s),
    "chosen NaN": lambda s, b, h, q, k: torch.where(k == q, NAN, s),
    "logarithm": lambda s, b, h, q, k: torch.log(s),
    "reciprocal": lambda s, b, h, q, k: 1 / (s - s),
}

SCALES = (1e5, 1e9, 1e19, -1e19, 1e-9, 1e-30)


def tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, 1, 2, LENGTH, 16).to(dtype)
    return query, key, value


def expected(
    query: Tensor, key: Tensor, value: Tensor, mod: ScoreMod | None, scale: float
) -> Reference:
    """As torch's unfused attention: scores in the type that kernels have them in."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return attention(query, key, value, mod, scale=scale, precision=wide)


def check(found: Reference, want: Reference, what: str = "", tol: float = 3e-5) -> None:
    for name, got, exact in zip(Reference._fields, found, want, strict=True):
        torch.testing.assert_close(
            got.double(),
            exact.double(),
            rtol=tol,
            atol=tol,
            equal_nan=True,
            msg=lambda text, name=name: f"{what} {name}: {text}",
        )
