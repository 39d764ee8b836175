"""Masks, and the ranges of keys that follow from them, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from xdsl.context import Context

from flexc.dialects import flex
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.flex.flex_infer_key_ranges import RangeSpeller
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.scalar import Proven
from flexc.passes.scalar.readable import describe
from flexc.runtime.kernels.proofs import attention_of

Mask = Callable[..., Any]

size = 20
lengths = torch.tensor([5, 7])
pages = torch.arange(50)


def simplified(mask: Mask) -> flex.AttentionOp:
    mods = capture_mods(read_mods(None, mask))
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24)
    module = build_attention_module(None, mods.mask, call).module
    pipelines.run(pipelines.to_simple_flex(), Context(), module)
    return attention_of(module)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (lambda b, h, q, k: q - k <= size, "q_idx - kv_idx <= size"),
        (lambda b, h, q, k: q % size == 3, "q_idx % size == 3"),
        (lambda b, h, q, k: (q - k) % 5 != 0, "(q_idx - kv_idx) % 5 != 0"),
        (lambda b, h, q, k: q // 8 > k // 3, "q_idx // 8 > kv_idx // 3"),
        (lambda b, h, q, k: q * 4 > k, "q_idx * 4 > kv_idx"),
        (lambda b, h, q, k: (q - k).abs() < 9, "abs(q_idx - kv_idx) < 9"),
        (lambda b, h, q, k: k < lengths[b], "kv_idx < lengths[b]"),
        (lambda b, h, q, k: pages[k - q] > 1, "pages[kv_idx - q_idx] > 1"),
        (
            lambda b, h, q, k: ~((q > k) & (k > 3)),
            "not ((q_idx > kv_idx) & (kv_idx > 3))",
        ),
        (
            lambda b, h, q, k: q.clamp(2, size) < k,
            "min(max(q_idx, 2), size) < kv_idx",
        ),
    ],
)
def test_masks(mask: Mask, text: str) -> None:
    assert describe(simplified(mask).mask_mod) == text


def test_long_masks_are_cut() -> None:
    def mask(b, h, q, k):
        for i in range(30):
            q = q * k + i
        return q > 0

    text = describe(simplified(mask).mask_mod)
    assert "..." in text
    assert len(text) < 500


@pytest.mark.parametrize(
    ("mask", "live", "dead"),
    [
        (lambda b, h, q, k: q >= k, "[0, q_last]", "[q_first + 1, kv_len - 1]"),
        (lambda b, h, q, k: q + size > k - 2, "[0, q_last + size + 1]", None),
        (lambda b, h, q, k: k > 9, "[10, kv_len - 1]", "[0, 9]"),
        (lambda b, h, q, k: (k == 3) | (k == q), "[3, 3] or [q_first, q_last]", None),
        (lambda b, h, q, k: k * 3 >= q, "[ceil(q_first / 3), kv_len - 1]", None),
        (
            lambda b, h, q, k: (k < 9) & (q < lengths[b]),
            "[0, 8] if q_first <= lengths[b] - 1",
            "[9, kv_len - 1] or [0, kv_len - 1] if q_last >= lengths[b]",
        ),
        (
            lambda b, h, q, k: (k <= q) & (lengths[h] > 2),
            "[0, q_last] if lengths[h] > 2",
            "[q_first + 1, kv_len - 1] or [0, kv_len - 1] if lengths[h] <= 2",
        ),
        (
            lambda b, h, q, k: q // size == k // size,
            "[max(0, (q_first // size) * size), (q_last // size + 1) * size - 1]",
            None,
        ),
    ],
)
def test_ranges(mask: Mask, live: str, dead: str | None) -> None:
    op = simplified(mask)
    proof = MaskProblem.of(op).ranges(64, 64)
    assert isinstance(proof, Proven)
    speller = RangeSpeller(op.mask_mod)
    assert speller.ranges(proof.value.live) == f"kv_idx in {live}"
    if dead is not None:
        assert speller.ranges(proof.value.dead) == f"kv_idx in {dead}"


def test_no_range_and_every_key() -> None:
    speller = RangeSpeller(simplified(lambda b, h, q, k: q >= k).mask_mod)
    op = simplified(lambda b, h, q, k: (q + k) % 3 == 0)
    proof = MaskProblem.of(op).ranges(64, 64)
    assert isinstance(proof, Proven)
    assert speller.ranges(proof.value.live) == "all"
    assert speller.ranges(()) == "none"
