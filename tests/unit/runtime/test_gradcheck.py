"""torch's own checks of derivatives, by finite differences in double precision, for the
variants that are demonstrated, with what a user would train: tables, gates and slopes
of heads, and sinks through lse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import flexc
from bench.variants import DEMO, Variant
from tests.support.corpus import CORPUS, Mods
from tests.support.leaves import Learned
from tests.support.threads import torch_threads

HEADS, LENGTH, HEAD_DIM, VALUE_DIM = 2, 6, 3, 2

# The others are left to `make test-long`: a dozen kernels each.
QUICK = ("relative bias table",)
VARIANTS = [
    pytest.param(v, id=v.title, marks=[] if v.title in QUICK else [pytest.mark.slow])
    for v in DEMO
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Thousands of tiny calls."""
    with torch_threads(1):
        yield


def mods_of(variant: Variant, given: list[Tensor]) -> tuple[Mods, list[Tensor]]:
    """A variant's mods, and the tensors that they capture: what they learn."""
    problem = Learned(1, HEADS, kv_heads(variant), LENGTH, LENGTH, "cpu", given=given)
    score_mod, mask_mod = CORPUS[variant.case].build(problem)
    gate, slope = problem.normal(HEADS), problem.normal(HEADS)

    def trained(score, b, h, q_idx, kv_idx):
        score = score * torch.exp(gate[h]) + slope[h] * (kv_idx - q_idx)
        return score if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)

    problem.normal(HEADS)
    return (trained, mask_mod), problem.tensors


def kv_heads(variant: Variant) -> int:
    return HEADS if variant.kv_heads == 8 else 1


def attend(variant: Variant, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Attention with a sink for each head, and lse."""
    query, key, value, *learned = tensors
    (score_mod, mask_mod), _ = mods_of(variant, learned)
    result: Any = flexc.flex_attention(
        query, key, value, score_mod, mask_mod=mask_mod, enable_gqa=True,
        return_lse=True,
    )  # fmt: skip
    out, lse = result
    lse = torch.where(lse.isinf(), 0.0, lse)
    return out * torch.sigmoid(lse - learned[-1][:, None])[..., None], lse


def inputs_of(variant: Variant) -> list[Tensor]:
    shapes = [
        (1, HEADS, LENGTH, HEAD_DIM),
        (1, kv_heads(variant), LENGTH, HEAD_DIM),
        (1, kv_heads(variant), LENGTH, VALUE_DIM),
    ]
    drawn = [torch.randn(s, dtype=torch.float64) for s in shapes]
    return [*drawn, *(t.double() for t in mods_of(variant, [])[1])]


@pytest.mark.parametrize("variant", VARIANTS)
def test_derivatives_are_those_of_differences(variant: Variant) -> None:
    inputs = inputs_of(variant)
    sizes = [t.numel() for t in inputs]

    # Of one tensor that has all: each selection of inputs has kernels of its own.
    def function(flat: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(flat.split(sizes), inputs, strict=True)
        return attend(variant, *(part.view(t.shape) for part, t in parts))

    flat = torch.cat([t.flatten() for t in inputs]).requires_grad_()
    assert gradcheck(function, flat, check_forward_ad=True)
    assert gradgradcheck(function, flat, check_fwd_over_rev=True, fast_mode=True)
