"""Derivatives of generated calls on the C++ backend: those that torch finds for dense
attention in double precision.

Gradients and tangents are held to bounds that are derived number by number, see
`gradient_tolerance`. Second derivatives are computed in double precision alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.property.derivative_cases import widened
from tests.property.gradient_cases import GradientCase
from tests.property.gradient_checks import check_gradients, check_tangents
from tests.property.gradient_strategies import gradient_cases
from tests.support.threads import torch_threads

LEVEL = settings().max_examples


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, LEVEL // 4))  # four kernels each, and more for captures
@given(gradient_cases())
def test_gradients(given: GradientCase) -> None:
    check_gradients(given, "cpp")


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, LEVEL // 8))
@given(gradient_cases())
def test_tangents(given: GradientCase) -> None:
    check_tangents(given, "cpp")


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, LEVEL // 12))  # ten kernels each
@given(gradient_cases((torch.float64,), longest=49, depth=2))
def test_second_derivatives(given: GradientCase) -> None:
    given = replace(given, case=widened(given.case))
    found, exact = given.second_by_flexc("cpp"), given.exact_second()
    for i, (got, want) in enumerate(zip(found, exact, strict=True)):
        worst = error(got, want)
        assert worst <= ROUNDING, f"result {i} of {len(found)} is wrong by {worst:.3g}"


ROUNDING = 2.0**20 * torch.finfo(torch.float64).eps
"""A number is a sum of some thousand products at most, of which each has some tens of
roundings; derivatives of generated mods are below some hundreds."""


def error(got: Tensor, want: Tensor) -> float:
    """The largest error, relative to the largest number, or to 1 if that is more."""
    if not want.numel():
        return 0.0
    worst = (got - want).abs().nan_to_num(torch.inf).max()
    return float(worst / want.abs().max().clamp(min=1))


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, LEVEL // 25))
@given(gradient_cases())
def test_equal_bits(given: GradientCase) -> None:
    """At every run, with any one number of threads, captured tensors included."""
    for threads in (1, 2):
        with torch_threads(threads):
            first, second = given.gradients("cpp"), given.gradients("cpp")
        for name, gradient in first.items():
            torch.testing.assert_close(second[name], gradient, rtol=0, atol=0)
