"""Emitted Triton source, run by Triton's interpreter, on generated mods."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.calls import check_backend
from tests.property.cases import Case
from tests.property.gradient_cases import GradientCase
from tests.property.gradient_checks import check_gradients, check_tangents
from tests.property.gradient_strategies import gradient_cases
from tests.property.strategies import cases
from tests.support.interpreted import DTYPES

pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.usefixtures("splats_of_comparisons"),
]

LEVEL = settings().max_examples


@given(cases(DTYPES, longest=65), st.sampled_from((None, 16, 32)))
def test_results_are_those_of_dense_attention(case: Case, block: int | None) -> None:
    check_backend(case, "triton", block)


@settings(max_examples=max(1, LEVEL // 4))
@given(gradient_cases(DTYPES, longest=33))
def test_gradients(given: GradientCase) -> None:
    check_gradients(given, "triton")


@settings(max_examples=max(1, LEVEL // 12))
@given(gradient_cases(DTYPES, longest=33))
def test_tangents(given: GradientCase) -> None:
    check_tangents(given, "triton")
