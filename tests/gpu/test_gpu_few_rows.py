"""Calls of few queries, as in decoding, on a GPU, against double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexc
from tests.gpu.gradients import Sizes
from tests.gpu.test_gpu_numerics import inputs, mods_of
from tests.gpu.test_gpu_splits import QKV, check
from tests.support.corpus import Mods
from tests.support.filled_memory import poisoned

pytestmark = pytest.mark.gpu

DECODING = Sizes(batch=3, heads=16, kv_heads=4, q_len=1, kv_len=4000, head_dim=128)
DECODING = DECODING._replace(value_dim=128)


def attend(qkv: QKV, mods: Mods) -> Any:
    """Output and log-sum-exp."""
    with torch.no_grad(), poisoned():
        return flexc.flex_attention(
            *qkv, mods[0], mask_mod=mods[1], enable_gqa=True, return_lse=True
        )


def offset_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx + 3900


CASES = ("dense", "alibi", "soft_cap", "causal", "head_windows", "some_rows_empty")


@pytest.mark.parametrize("q_len", [1, 4, 16])
@pytest.mark.parametrize("case", CASES)
def test_few_queries(case: str, q_len: int) -> None:
    sizes = DECODING._replace(q_len=q_len)
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
    check(qkv, mods, attend(qkv, mods))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("head_dim", [3, 64, 80, 256, 512, 576])
def test_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    sizes = DECODING._replace(q_len=2, head_dim=head_dim, value_dim=head_dim)
    qkv, mods = inputs(sizes, dtype), mods_of("alibi", sizes)
    mods = mods[0], offset_causal
    check(qkv, mods, attend(qkv, mods))


@pytest.mark.parametrize("heads", [(4, 4), (8, 1), (10, 2)])
def test_groups(heads: tuple[int, int]) -> None:
    sizes = DECODING._replace(heads=heads[0], kv_heads=heads[1], q_len=3)
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of("alibi", sizes)
    check(qkv, mods, attend(qkv, mods))


def test_a_sequence_has_the_bits_that_it_has_alone() -> None:
    sizes = DECODING._replace(batch=40, kv_len=2048)
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of("alibi", sizes)
    together = attend(qkv, mods)
    q, k, v = (x[7:8].clone() for x in qkv)
    alone = attend((q, k, v), mods)
    for all_, one in zip(together, alone, strict=True):
        assert all_[7:8].equal(one)
