"""The C++ backend, from Python functions to results, on generated mods."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.calls import check_backend
from tests.property.cases import Case
from tests.property.strategies import cases
from tests.support.filled_memory import poisoned


def test_memory_is_poisoned() -> None:
    with poisoned():
        assert torch.empty_permuted((2, 3), (1, 0)).isnan().all()
        assert torch.empty(4, dtype=torch.bfloat16).isnan().all()


@pytest.mark.timeout(3600)
@given(cases(), st.sampled_from((None, 16, 32)))
def test_results_are_those_of_dense_attention(case: Case, block: int | None) -> None:
    check_backend(case, "cpp", block)


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, settings().max_examples // 4))
@given(cases(depth=1), st.sampled_from((7, 48)))
def test_tiles_of_any_size(case: Case, block: int) -> None:
    check_backend(case, "cpp", block)
