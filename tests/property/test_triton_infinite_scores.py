"""Infinite scores in emitted Triton source, run by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from tests.support.infinite_scores import (
    MODS,
    SCALES,
    check,
    expected,
    tensors,
)
from tests.support.reference import Reference

pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.usefixtures("splats_of_comparisons"),
]


def results(query: Tensor, key: Tensor, value: Tensor, mod: Any, scale: float) -> Any:
    aux = AuxRequest(lse=True, max_scores=True)
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16}
    with torch.no_grad():
        result: Any = flexc.flex_attention(
            query, key, value, mod, scale=scale, return_aux=aux, backend="triton",
            kernel_options=tiles,
        )  # fmt: skip
    out, rest = result
    return Reference(out, rest.lse, rest.max_scores)


@pytest.mark.parametrize("name", MODS)
def test_mods(name: str) -> None:
    inputs = tensors()
    found = results(*inputs, MODS[name], 0.25)
    check(found, expected(*inputs, MODS[name], 0.25))


@pytest.mark.parametrize("scale", SCALES)
def test_scales(scale: float) -> None:
    query, key, value = tensors()
    query, key = query * 1e15, key * 1e15
    found = results(query, key, value, None, scale)
    check(found, expected(query, key, value, None, scale))
