"""Programs of gradients: how many own keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flexc.runtime.autograd.gradient_kernels import has_few_programs

CAUSAL, UNIFORM = "positive", "none"


@pytest.mark.parametrize(
    ("batch", "q_heads", "kv_heads", "length", "growth", "few"),
    [
        (2, 16, 1, 8192, CAUSAL, True),  # 128 programs
        (2, 16, 1, 8192, None, True),
        (2, 16, 1, 8192, UNIFORM, False),
        (2, 16, 1, 4096, UNIFORM, True),  # 64
        (3, 16, 1, 8192, UNIFORM, True),  # 192, and each multiprocessor has one or two
        (1, 32, 8, 2048, CAUSAL, True),
        (1, 32, 8, 4096, CAUSAL, False),  # 256
        (1, 32, 8, 1024, CAUSAL, False),  # They end early.
    ],
)
def test_few_programs_of_keys(
    batch: int, q_heads: int, kv_heads: int, length: int, growth: str | None, few: bool
) -> None:
    query, key = (
        torch.empty(batch, heads, length, 128, device="meta")
        for heads in (q_heads, kv_heads)
    )
    ranges = SimpleNamespace(growth=SimpleNamespace(data=growth)) if growth else None
    op: Any = SimpleNamespace(key_ranges=ranges)
    assert has_few_programs(query, key, op) == few
