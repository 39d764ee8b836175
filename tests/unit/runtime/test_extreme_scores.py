"""Scores far from zero: what people mask with in place of -inf, and huge scales."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from tests.support import reference

LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("low", [-1e9, -1e10, -1e30, LOWEST])
def test_rows_of_nothing_but_low_scores(dtype: torch.dtype, low: float) -> None:
    """They weigh all keys alike, as in dense attention."""

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((k <= q - 3) & (k > q - 90), s, low)

    check(torch.randn(3, 1, 2, 140, 8, dtype=dtype), score_mod)


@pytest.mark.parametrize("high", [2.0**31, 1e30])
def test_high_scores(high: float) -> None:
    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((q + k) % 3 == 0, high, s)

    check(torch.randn(3, 1, 2, 140, 8), score_mod)


@pytest.mark.parametrize("scale", [1e10, 1e19, -1e10])
def test_scores_that_a_scale_makes_large(scale: float) -> None:
    check(torch.randint(-2, 3, (3, 1, 2, 140, 8)).float(), scale=scale)


def check(
    tensors: Tensor,
    score_mod: reference.ScoreMod | None = None,
    scale: float | None = None,
) -> None:
    query, key, value = tensors
    expected = reference.attention(query, key, value, score_mod, scale=scale)
    aux = AuxRequest(lse=True, max_scores=True)
    out, got = flexc.flex_attention(
        query, key, value, score_mod, scale=scale, return_aux=aux
    )
    tol = 5e-3 if query.dtype is torch.float16 else 2e-5
    torch.testing.assert_close(out.double(), expected.out, rtol=tol, atol=tol)
    for name in ("lse", "max_scores"):
        torch.testing.assert_close(
            getattr(got, name).double(), getattr(expected, name), rtol=tol, atol=tol
        )
