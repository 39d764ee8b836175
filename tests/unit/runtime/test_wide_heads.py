"""Wide heads: those of latent attention, whose values are a view of the keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc


@pytest.mark.parametrize("queries", [1, 5, 40])
def test_values_may_be_a_view_of_wider_keys(queries: int) -> None:
    query = torch.randn(2, 4, queries, 576, dtype=torch.float64, requires_grad=True)
    cache = torch.randn(2, 1, 60, 576, dtype=torch.float64, requires_grad=True)
    mask = flexc.causal_lower_right(queries, 60)

    def attend(query: Tensor, cache: Tensor) -> Tensor:
        found: Any = flexc.flex_attention(
            query, cache, cache[..., :512], mask_mod=mask, enable_gqa=True
        )
        return found

    def dense(query: Tensor, cache: Tensor) -> Tensor:
        live = torch.ones(queries, 60).tril(60 - queries).bool()
        scores = query @ cache.mT / math.sqrt(576)
        weights = scores.masked_fill(~live, -torch.inf).softmax(-1)
        return weights @ cache[..., :512]

    exact, found = (f(query, cache) for f in (dense, attend))
    torch.testing.assert_close(found, exact)
    cotangent = torch.randn_like(exact)
    inputs = query, cache
    gradients = (torch.autograd.grad(o, inputs, cotangent) for o in (found, exact))
    torch.testing.assert_close(*gradients)
