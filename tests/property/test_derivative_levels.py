"""Every level computes the derivatives that torch finds for dense attention."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from flexc.runtime.interpreters import run_module
from tests.property.derivative_cases import (
    DerivativeCase,
    double_cases,
    rounded_cases,
    worst,
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
    target: str, given: DerivativeCase
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
def test_derivatives_of_half_precision(target: str, given: DerivativeCase) -> None:
    """Values of pairs are rounded to the type of what they multiply, and `out`, of
    which delta is made, was too.

    Where terms cancel (in a row with one live key all do) the result is smaller than
    what was rounded: dense attention in that type says how much is lost.
    """
    is_half = given.case.dtype.itemsize == 2
    for name, module in given.levels(target, BLOCK):
        if any(level in name for level in LEVELS):
            tolerance = 2.0**-4 if is_half else 2.0**-12
            check(given, name, module, tolerance, given.dense_errors if is_half else ())


def check(
    given: DerivativeCase,
    name: str,
    module: ModuleOp,
    tolerance: float,
    least: Sequence[float] = (),
) -> None:
    """Hold results to the reference, relative to their largest number or to 1.

    Errors up to those in `least`, one for each result, are allowed in any case.

    A number is the sum of some thousand products at most, of which each has some tens
    of roundings; derivatives of the generated mods are below some hundreds.
    """
    args = given.module_and_args[1]
    results = run_module(module, args, compute_dtype=torch.float64)
    for i, (got, want) in enumerate(zip(results, given.expected, strict=True)):
        allowed = max([tolerance * magnitude(want), *least[i : i + 1]])
        error = worst(got, want)
        assert error <= allowed, (
            f"{name}: result {i} is wrong by {error:.3g}, of {allowed:.3g} allowed"
        )


def magnitude(want: Tensor) -> float:
    return max(1.0, float(want.abs().max()) if want.numel() else 0.0)
