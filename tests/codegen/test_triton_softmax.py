"""Softmaxes that bounds of the scores made simpler, by Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.support.reference import attention

pytest.importorskip("triton")

TOLERANCE = {torch.float32: 5e-5, torch.float16: 3e-3}


def soft_cap(cap: int) -> Callable[..., Tensor]:
    """A constant of the code, which bounds the score; a captured number does not."""
    scope: dict[str, Callable[..., Tensor]] = {}
    source = f"lambda s, b, h, q, k: {cap}.0 * (s / {cap}.0).tanh()"
    exec(f"mod = {source}", scope)
    return scope["mod"]


def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q % 2 == 0) & (k >= q)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("cap", [5, 20, 50])
@pytest.mark.parametrize("size", [0.25, 100.0])
def test_scores_up_to_their_bounds(dtype: torch.dtype, cap: int, size: float) -> None:
    query, key, value = (torch.randn(1, 1, n, 16, dtype=dtype) for n in (40, 70, 70))
    query = query * size
    key[..., 0] = 4
    query[..., ::6, 0], query[..., 3::6, 0] = -4 * size, 4 * size
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16}
    with torch.no_grad():
        result: Any = flexc.flex_attention(
            query, key, value, soft_cap(cap), mask_mod=mask, scale=1.0,
            kernel_options=tiles, return_lse=True, backend="triton",
        )  # fmt: skip
    out, lse = result
    want = attention(query, key, value, soft_cap(cap), mask, scale=1.0)
    near = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), want.out, atol=near, rtol=near)
    rows = max(1e-4, 2 * cap * 2.0**-24)
    torch.testing.assert_close(lse.double(), want.lse, atol=rows, rtol=rows)
    assert (lse[:, :, 1::2] == -math.inf).all()
