"""Programs of gradients: how many own keys."""

from __future__ import annotations

import pytest
import torch

from flexc.dialects import flex
from flexc.runtime.autograd.gradient_kernels import has_few_programs
from flexc.runtime.kernels.driver import simple_attention
from tests.support.corpus import CORPUS
from tests.support.flex_modules import make_call, make_module


def attention(case: str) -> flex.AttentionOp:
    query = torch.zeros(1, 1, 8, 16)
    mods = CORPUS[case].factory(1, 1, 1, 8, 8)
    module, _ = make_module(make_call((query,) * 3, *mods, 0.25))
    return simple_attention(module)


@pytest.mark.parametrize(
    ("batch", "q_heads", "kv_heads", "length", "case", "few"),
    [
        (2, 16, 1, 8192, "causal", True),  # 128 programs
        (2, 16, 1, 8192, "shifted_blocks", True),  # without bounds
        (2, 16, 1, 8192, "dense", False),
        (2, 16, 1, 8192, "sliding_window", False),
        (2, 16, 1, 4096, "dense", True),  # 64
        (3, 16, 1, 8192, "dense", True),  # 192, and a multiprocessor has one or two
        (1, 32, 8, 2048, "causal", True),
        (1, 32, 8, 4096, "causal", False),  # 256
        (1, 32, 8, 1024, "causal", False),  # They end early.
    ],
)
def test_few_programs_of_keys(
    batch: int, q_heads: int, kv_heads: int, length: int, case: str, few: bool
) -> None:
    query, key = (
        torch.empty(batch, heads, length, 128, device="meta")
        for heads in (q_heads, kv_heads)
    )
    assert has_few_programs(query, key, lambda: attention(case)) == few
