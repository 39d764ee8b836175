"""What Inductor writes: calls of operators by functions that replay their tapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.profiler import ProfilerActivity, profile

import flexc
from tests.support.dense_gradients import attention
from tests.unit.runtime.repeated import same

pytestmark = pytest.mark.usefixtures("known")

LENGTH = 2176
"""So many rows that there are blocks to be planned."""

OPERATORS = ("attention", "attention_backward", "plan")


def run(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Any:
    mask = same(documents)
    return flexc.flex_attention(query, key, value, mask_mod=mask)


def test_operators_are_called_past_the_dispatcher() -> None:
    torch._dynamo.reset()
    documents = torch.arange(LENGTH) // 300
    given = [torch.randn(1, 2, LENGTH, 16, requires_grad=True) for _ in range(3)]
    compiled: Any = torch.compile(run, fullgraph=True)

    def both() -> tuple[Tensor, ...]:
        out = compiled(*given, documents)
        return out, *torch.autograd.grad(out, given, cotangent)

    expected = attention(*given, None, same(documents)).out  # pyright: ignore
    cotangent = torch.randn_like(expected)
    right = torch.autograd.grad(expected, given, cotangent)
    _, codes = run_fw_bw_and_get_code(lambda: compiled(*given, documents))
    code = "\n".join(codes)
    for name in OPERATORS:
        assert f"= flexc_{name}(" in code
        assert f"= torch.ops.flexc.{name}.default(" not in code
    for _ in range(3):
        out, *found = both()
        torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        both()
    names = {event.name for event in seen.events() or ()}
    assert names >= {"flexc::attention", "flexc::attention_backward", "flexc::plan"}
