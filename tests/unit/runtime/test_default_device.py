"""Calls whose tensors are not on torch's default device, as `torch.set_default_device`
makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.distributed import plan
from tests.support.corpus import CORPUS
from tests.support.corpus_masks import causal_mask

SIZES = (2, 4, 2, 40, 61)


@pytest.fixture(autouse=True)
def _elsewhere() -> Iterator[None]:
    """New tensors without a device have no elements."""
    with torch.device("meta"):
        yield


def qkv(grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    b, h, kv_h, q_len, kv_len = SIZES
    on: Any = {"device": "cpu", "requires_grad": grad}
    key, value = (torch.randn(b, kv_h, kv_len, 16, **on) for _ in range(2))
    return torch.randn(b, h, q_len, 16, **on), key, value


def mods_of(case: str) -> Any:
    with torch.device("cpu"):
        return CORPUS[case].factory(*SIZES)


@pytest.mark.parametrize("backend", ["cpp", "eager"])
@pytest.mark.parametrize("case", ["documents", "alibi", "random_blocks", "t5_buckets"])
def test_calls_and_gradients(case: str, backend: Any) -> None:
    score_mod, mask_mod = mods_of(case)
    given = qkv(grad=True)
    out: Any = flexc.flex_attention(
        *given, score_mod, mask_mod=mask_mod, enable_gqa=True, backend=backend
    )
    grads = torch.autograd.grad(out, given, torch.ones_like(out))
    assert all(t.device.type == "cpu" for t in (out, *grads))


def test_block_masks_and_explain() -> None:
    _, mask_mod = mods_of("documents")
    b, h, _, q_len, kv_len = SIZES
    block_mask = flexc.create_block_mask(mask_mod, b, h, q_len, kv_len, "cpu")
    out: Any = flexc.flex_attention(*qkv(), block_mask=block_mask, enable_gqa=True)
    assert out.isfinite().any()
    given: Any = {"mask_mod": mask_mod, "enable_gqa": True}
    assert str(flexc.explain(flexc.flex_attention, *qkv(), **given))


def test_varlen() -> None:
    ends = torch.tensor([0, 10, 40], dtype=torch.int32, device="cpu")
    x = torch.randn(40, 2, 16, device="cpu")
    out: Any = flexc.flex_attention_varlen(x, x, x, ends, ends, 30, 30)
    assert out.isfinite().all()


def test_caches() -> None:
    cache = flexc.PagedKV(
        batch=2, heads=2, pages=8, page_size=16, head_dim=16, device="cpu"
    )
    x = torch.randn(2, 2, 21, 16, device="cpu")
    cache.append(x, x)
    found: Any = cache.attend(x)
    assert found.isfinite().all()


def test_plans_of_ranks() -> None:
    assert plan(causal_mask, 1, 4, 4096, ranks=4, device="cpu").estimates
