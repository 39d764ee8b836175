"""Bounds of scores that depend on a captured number: proved call by call."""

from __future__ import annotations

from typing import Any

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
