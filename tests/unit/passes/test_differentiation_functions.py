"""Derivatives of what the frontend imports, by torch's conventions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.derivatives import (
    Imported,
    Points,
    torch_scores,
)
from tests.unit.frontend.test_ops import FLOAT_UNARY, PARTIAL_UNARY

INF = math.inf
EXTREME = torch.tensor(
    [-INF, -1000, -90, -20.5, -6, -3, -2.5, -1, -0.5, -0.0, 0.0, 0.3, 0.5, 1, 1.5, 2,
     2.5, 3, 6, 20, 20.5, 90, 800, 1e5, INF],
    dtype=torch.float64,
)  # fmt: skip
SMOOTH = torch.tensor([-2.3, -0.7, -0.1, 0.2, 0.4, 0.9, 1.7, 4.1], dtype=torch.float64)

OTHERS: list[Callable[..., Any]] = [
    lambda x: F.hardtanh(x, -2.5, 3.0),
    lambda x: F.softplus(x, beta=2.0, threshold=6.0),
    lambda x: torch.logit(x, eps=0.3),
    lambda x: F.elu(x, 0.5),
    lambda x: F.celu(x, 0.5),
    lambda x: F.threshold(x, 1.0, 5.0),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.clamp(x, -1, 6),
    lambda x: torch.clamp(x, min=0.5),
    lambda x: x.clamp_max(0.5),
    lambda x: torch.round(x, decimals=1) + x,
    lambda x: x.detach() * x,
    lambda x: torch.where(x > 0, x, x.detach()),
    lambda x: x**3 + x**4 + x.abs() ** 0.5,
    lambda x: 20 * torch.tanh(x / 20),
    lambda x: (x > 0) * x + x.to(torch.int32),
]

ROUNDED = {F.hardsigmoid: 1e-6}
"""torch multiplies by a sixth in single precision."""


def points_of(scores: Tensor) -> Points:
    zero = torch.zeros(len(scores), dtype=torch.int64)
    return Points(scores, [zero] * 4)


def torch_gradient(fn: Callable[..., Any], scores: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivative; NaN where torch has none."""
    x = scores.clone().requires_grad_()
    out = torch_scores(lambda s, *_: fn(s), points_of(x))
    none = torch.zeros_like(scores)
    if not out.requires_grad:
        return none, none
    once = fn is F.hardsigmoid  # It has no second derivative in torch.
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=not once)
    if not first.requires_grad:
        return first, none
    (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
    return first.detach(), none if second is None else second


def assert_where_known(got: Tensor, want: Tensor, **tolerance: Any) -> None:
    """Equal wherever torch's answer is a number."""
    known = ~want.isnan()
    assert known.any()
    torch.testing.assert_close(got[known], want[known], **tolerance)


@pytest.mark.parametrize("fn", [*FLOAT_UNARY, *PARTIAL_UNARY, *OTHERS])
def test_functions_of_the_score(fn: Callable[..., Any]) -> None:
    imported = Imported(lambda s, b, h, q, k: fn(s))
    rtol = ROUNDED.get(fn, 1e-9)
    scores = EXTREME
    if fn is torch.logit:  # Elsewhere its value is NaN.
        scores = EXTREME[(EXTREME >= 0) & (EXTREME <= 1)]
    points, ones = points_of(scores), torch.ones_like(scores)
    want = torch_gradient(fn, scores)[0]
    (reverse,) = imported.pulled_back(points, ones)
    assert_where_known(reverse, want, rtol=rtol, atol=1e-12)
    if fn is F.hardswish:  # inf * 0 forwards, as in torch's `x * y`.
        finite = scores.isfinite()
        points, ones, want = points_of(scores[finite]), ones[finite], want[finite]
    forward = imported.pushed_forward(points, [ones])
    assert_where_known(forward, want, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("fn", [*FLOAT_UNARY, *PARTIAL_UNARY, *OTHERS])
def test_second_derivatives(fn: Callable[..., Any]) -> None:
    imported = Imported(lambda s, b, h, q, k: fn(s))
    points, ones = points_of(SMOOTH), torch.ones_like(SMOOTH)
    (got,) = imported.second_order(points, ones, torch.zeros_like(ones), [ones])
    want = torch_gradient(fn, SMOOTH)[1]
    if fn is torch.logit:
        got, want = got[3:6], want[3:6]
    assert_where_known(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("exponent", [-1, -2, -3, -4, 0.7, -0.5, 5])
def test_powers(exponent: float) -> None:
    test_second_derivatives(lambda x: (x + 3) ** exponent)


def test_steps_have_no_derivative() -> None:
    """torch refuses some of these."""
    half = torch.tensor(0.5)
    imported = Imported(lambda s, b, h, q, k: torch.heaviside(s, half) + s // 0.3)
    points, ones = points_of(EXTREME), torch.ones_like(EXTREME)
    score, _ = imported.pulled_back(points, ones)
    assert not score.any()


@pytest.mark.parametrize("fn", [F.logsigmoid, F.silu, F.gelu, F.mish, F.softplus])
def test_second_derivatives_at_zero_and_far_away(fn: Callable[..., Any]) -> None:
    imported = Imported(lambda s, b, h, q, k: fn(s))
    scores = torch.tensor([-1000.0, -90.0, 0.0, 90.0, 1000.0], dtype=torch.float64)
    ones = torch.ones_like(scores)
    (got,) = imported.second_order(points_of(scores), ones, 0 * ones, [ones])
    want = torch_gradient(fn, scores)[1]
    assert got.isfinite().all()
    assert_where_known(got, want, rtol=1e-6, atol=1e-12)


VALUES = torch.tensor(
    [-1000, -3, -2, -0.5, -0.0, 0.0, 0.5, 1, 2, 3, 100], dtype=torch.float64
)
FIRST, SECOND = (v.flatten() for v in torch.meshgrid(VALUES, VALUES, indexing="ij"))

BINARY: dict[str, Callable[..., Any]] = {
    "divide": lambda a, b: a / b,
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc") + a,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor") + a,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "clamp_min": lambda a, b: torch.clamp(a, min=b),
    "clamp_max": lambda a, b: torch.clamp(a, max=b),
    "clamp": lambda a, b: torch.clamp(a, b, b + 1),
    "where": lambda a, b: torch.where(a < b, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "lerp_tensor": lambda a, b: torch.lerp(a, b, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "pow": torch.pow,
    "xlogy": torch.xlogy,
    "exponential": lambda a, b: 2.0**b + a,
    "alpha": lambda a, b: torch.add(a, b, alpha=2.5),
    "nan_to_num": lambda a, b: torch.nan_to_num(a / b, 1.0, 2.0, 3.0),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_score_and_capture(name: str) -> None:
    fn, captured = BINARY[name], SECOND.clone()
    imported = Imported(lambda s, b, h, q, k: fn(s, captured[q]))
    rows, zero = torch.arange(len(FIRST)), torch.zeros(len(FIRST), dtype=torch.int64)
    points = Points(FIRST, [zero, zero, rows, zero])
    cotangent = torch.full_like(FIRST, 1.5)
    leaves = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    found = torch.autograd.grad(fn(*leaves), leaves, cotangent, allow_unused=True)
    wants = [torch.zeros_like(FIRST) if g is None else g for g in found]
    for got, want in zip(imported.pulled_back(points, cotangent), wants, strict=True):
        assert_where_known(got, want)
    for which, want in enumerate(wants):
        tangents = [cotangent if i == which else 0 * cotangent for i in range(2)]
        plain = imported.pushed_forward(points, tangents)
        # The other tangent is 0, but not known to be: 0 * inf where it is multiplied.
        known = ~plain.isnan() & ~want.isnan()
        torch.testing.assert_close(plain[known], want[known])


def test_equal_numbers_of_second_order() -> None:
    """Choices that meet at a tie have the derivatives of the function there."""
    captured = torch.zeros(2, dtype=torch.float64)
    imported = Imported(lambda s, b, h, q, k: torch.logaddexp(s, captured[q]))
    points = points_of(torch.zeros(1, dtype=torch.float64))
    one = torch.ones(1, dtype=torch.float64)
    tangents = [one, torch.zeros(2, dtype=torch.float64)]
    score, tensor = imported.second_order(points, one, 0 * one, tangents)
    assert score.tolist() == [0.25]
    assert tensor.tolist() == [-0.25, 0]


HALF_FUNCTIONS = (F.silu, torch.tanh, F.gelu, lambda x: x * x + x)


@pytest.mark.parametrize("fn", HALF_FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    """Adjoints are not rounded to the half precision that values are rounded to."""
    table = torch.linspace(-2, 2, 8).to(dtype)
    imported = Imported(lambda s, b, h, q, k: s * fn(table[q]), torch.float32)
    scores = torch.linspace(1, 2, 8)
    zero = torch.zeros(8, dtype=torch.int64)
    points = Points(scores, [zero, zero, torch.arange(8), zero])
    score, gradient = imported.pulled_back(points, torch.ones(8))
    wide = table.double().requires_grad_()
    (fn(wide) * scores).sum().backward()
    assert wide.grad is not None
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient, wide.grad, rtol=4 * unit, atol=4 * unit)
    assert gradient.to(dtype).double().ne(gradient).any()
    torch.testing.assert_close(score.float(), fn(table).float())
