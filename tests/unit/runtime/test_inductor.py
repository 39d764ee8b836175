"""What Inductor writes: calls of operators by functions that replay their tapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import flexc
from tests.dense_gradients import attention
from tests.unit.runtime.repeated import same

pytestmark = pytest.mark.usefixtures("known")

LENGTH = 2176
"""Of so many blocks that a mask is planned."""


def run(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Any:
    mask = same(documents)
    return flexc.flex_attention(query, key, value, mask_mod=mask)


def test_operators_are_called_past_the_dispatcher() -> None:
    torch._dynamo.reset()
    documents = torch.arange(LENGTH) // 300
    given = [torch.randn(1, 2, LENGTH, 16, requires_grad=True) for _ in range(3)]
    compiled: Any = torch.compile(run, fullgraph=True)
    out, codes = run_and_get_code(compiled, *given, documents)
    assert any("= flexc_attention(" in code for code in codes)
    assert not any("torch.ops.flexc.attention.default(" in code for code in codes)
    expected = attention(*given, None, same(documents)).out  # pyright: ignore
    cotangent = torch.randn_like(out)
    right = torch.autograd.grad(expected, given, cotangent)
    for _ in range(3):
        out = compiled(*given, documents)
        torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
        for a, b in zip(torch.autograd.grad(out, given, cotangent), right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
