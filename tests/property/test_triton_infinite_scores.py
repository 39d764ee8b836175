"""Infinite scores in emitted Triton source, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from tests.property.interpreted import (
    run_interpreted,
    splats_of_comparisons,
    starts_a_process,
    within_the_process,
)
from tests.support.infinite_scores import (
    MODS,
    SCALES,
    Results,
    check,
    expected,
    tensors,
)

pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of log(0)
]


@pytest.fixture(autouse=True, scope="module")
def _splats() -> Iterator[None]:
    with splats_of_comparisons():
        yield


@starts_a_process
def test_in_a_process_that_interprets(request: pytest.FixtureRequest) -> None:
    run_interpreted(request)


def results(query: Tensor, key: Tensor, value: Tensor, mod: Any, scale: float) -> Any:
    aux = AuxRequest(lse=True, max_scores=True)
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16}
    with torch.no_grad():
        result: Any = flexc.flex_attention(
            query, key, value, mod, scale=scale, return_aux=aux, backend="triton",
            kernel_options=tiles,
        )  # fmt: skip
    out, rest = result
    return Results(out, rest.lse, rest.max_scores)


@within_the_process
@pytest.mark.parametrize("name", MODS)
def test_mods(name: str) -> None:
    inputs = tensors()
    found = results(*inputs, MODS[name], 0.25)
    check(found, expected(*inputs, MODS[name], 0.25))


@within_the_process
@pytest.mark.parametrize("scale", SCALES)
def test_scales(scale: float) -> None:
    query, key, value = tensors()
    query, key = query * 1e15, key * 1e15
    found = results(query, key, value, None, scale)
    check(found, expected(query, key, value, None, scale))
