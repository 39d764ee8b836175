"""Every level computes the derivatives that torch finds for dense attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from flexc.passes.pipelines import Target
from flexc.runtime.interpreters import run_module
from tests.property.derivative_cases import (
    DerivativeCase,
    double_cases,
    rounded_cases,
)

BLOCK = 16
TARGETS = pytest.mark.parametrize("target", ["triton", "cpp"])
LEVELS = ("flex-expand-derivatives", "convert-blocksparse-to-tile", "tile-materialize")
EXAMPLES = settings().max_examples


@pytest.mark.timeout(3600)
@TARGETS
@settings(max_examples=max(1, EXAMPLES * 8 // 25))  # a dozen runs each
@given(double_cases())
def test_every_pass_preserves_the_derivative(
    target: Target, given: DerivativeCase
) -> None:
    """What is compared is of double precision but for what a mod itself rounds to
    single: then all that follows may differ by the rounding of such numbers."""
    tolerance = 2.0**-32 if given.is_double else 2.0**-11
    for name, module in given.levels(target, BLOCK):
        check(given, name, module, tolerance)


@pytest.mark.timeout(3600)
@TARGETS
@settings(max_examples=max(1, EXAMPLES * 6 // 25))
@given(rounded_cases())
def test_derivatives_of_half_precision(target: Target, given: DerivativeCase) -> None:
    """Values of pairs are rounded to the type of what they multiply, and `out`, of
    which delta is made, was too."""
    is_half = given.case.dtype.itemsize == 2
    for name, module in given.levels(target, BLOCK):
        if any(level in name for level in LEVELS):
            check(given, name, module, 2.0**-4 if is_half else 2.0**-12)


def check(given: DerivativeCase, name: str, module: ModuleOp, tolerance: float) -> None:
    """Hold results to the reference, relative to their largest number or to 1.

    A number is the sum of some thousand products at most, of which each has some tens
    of roundings; derivatives of the generated mods are below some hundreds.
    """
    args = given.module_and_args[1]
    results = run_module(module, args, compute_dtype=torch.float64)
    for i, (got, want) in enumerate(zip(results, given.expected, strict=True)):
        error, allowed = worst(got, want), tolerance * magnitude(want)
        assert error <= allowed, (
            f"{name}: result {i} is wrong by {error:.3g}, of {allowed:.3g} allowed"
        )


def magnitude(want: Tensor) -> float:
    return max(1.0, float(want.abs().max()) if want.numel() else 0.0)


def worst(got: Tensor, want: Tensor) -> float:
    """The largest error; infinite where a number is NaN on one side only."""
    error = (got.double() - want.double()).abs()
    return float(error.nan_to_num(torch.inf).max()) if error.numel() else 0.0
