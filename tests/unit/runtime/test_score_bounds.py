"""Bounds of scores that depend on a captured number: proved call by call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexc
from flexc.runtime.kernels.driver import counters
from tests.support.reference import attention


def test_captured_caps_share_two_kernels() -> None:
    """Bounds depend on the number, kernels on whether it is small enough."""
    query, key, value = (torch.randn(1, 2, 100, 16) * 6 for _ in range(3))

    def run(cap: float) -> None:
        def score_mod(score, b, h, q_idx, kv_idx):
            return cap * torch.tanh(score / cap)

        out: Any = flexc.flex_attention(query, key, value, score_mod=score_mod)
        exact = attention(query, key, value, score_mod).out
        assert (out - exact).abs().max() < 1e-4

    run(20.0)
    before = counters["built"]
    run(3.0)
    run(35.0)
    assert counters["built"] == before
    run(36.0)
    run(500.0)
    assert counters["built"] == before + 1


def test_a_number_that_bounds_nothing() -> None:
    query = torch.randn(1, 1, 20, 16)
    for factor in (2.0, 2000.0, float("nan"), float("inf")):

        def score_mod(score, b, h, q_idx, kv_idx, factor=factor):
            return score * factor

        out: Any = flexc.flex_attention(query, query, query, score_mod=score_mod)
        exact = attention(query, query, query, score_mod).out
        torch.testing.assert_close(
            out.double(), exact, equal_nan=True, rtol=0, atol=1e-3
        )


@pytest.mark.parametrize("rows", [1, 40])
def test_one_live_key_of_narrow_floats(rows: int) -> None:
    """Weights are rounded apart from their sum; each of two roundings is 2^-8."""
    torch.manual_seed(rows)
    given = [torch.randn(1, 3, rows, 64).bfloat16().requires_grad_() for _ in range(3)]
    query, key, value = given
    grad = torch.randn(1, 3, rows, 64).bfloat16()
    out: Any = flexc.flex_attention(
        *(query, key, value),
        lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
        mask_mod=lambda b, h, q, k: q == k,
    )
    found = torch.autograd.grad(out, given, grad)
    torch.testing.assert_close(out, value, atol=0, rtol=2**-7)
    assert found[2].equal(grad)
    lost = 2**-7 * (grad * value).abs().float().sum(-1, keepdim=True) / 64**0.5
    for gradient, other in ((found[0], key), (found[1], query)):
        assert (gradient.abs() <= 1.01 * lost * other.abs() + 1e-5).all()
