"""The attention variants that are demonstrated and measured, with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.corpus import (
    CORPUS,
    Device,
    Mods,
)
from tests.support.corpus_masks import causal_mask

HEADS = 8
LENGTH = 1024
HEAD_DIM = 64


@dataclass(frozen=True)
class Variant:
    """A case of the corpus in the sizes that the demonstration runs it in."""

    title: str
    case: str
    kv_heads: int = HEADS
    mask_per_head: bool = False

    def mods(self, device: Device) -> Mods:
        sizes = (1, HEADS, self.kv_heads, LENGTH, LENGTH)
        return CORPUS[self.case].factory(*sizes, device)

    def inputs(
        self, device: Device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        generator = torch.Generator().manual_seed(0)

        def draw(heads: int) -> Tensor:
            values = torch.randn(1, heads, LENGTH, HEAD_DIM, generator=generator)
            return values.to(device, dtype)

        return draw(HEADS), draw(self.kv_heads), draw(self.kv_heads)


DEMO = (
    Variant("causal", "causal"),
    Variant("sliding window", "sliding_window"),
    Variant("prefix LM", "prefix_lm"),
    Variant("documents", "documents"),
    Variant("ALiBi", "alibi"),
    Variant("soft cap", "soft_cap"),
    Variant("relative bias table", "relative_bias"),
    Variant("T5 buckets", "t5_buckets"),
    Variant("2-D neighbourhood", "neighbourhood_2d"),
    Variant("dilated", "dilated"),
    Variant("head windows, GQA", "head_windows", kv_heads=2, mask_per_head=True),
    Variant("pair bias", "pair_bias"),
)


@dataclass(frozen=True)
class Anchor:
    """A variant of the GPU benchmark, whose definition must not change.

    `build(B, H, S, dtype, device)` gives its mods, with captured tensors there.
    `sdpa` and `fa4` are the arguments with which `scaled_dot_product_attention` and
    FlashAttention-4 compute the same, if they can. A mask without bounds in closed form
    is to be `planned` beforehand.
    """

    name: str
    build: Callable[..., Mods]
    sdpa: dict[str, Any] | None = None
    fa4: dict[str, Any] | None = None
    planned: bool = False


def _window(
    B: int, H: int, S: int, dtype: torch.dtype, device: Device = "cuda"
) -> Mods:
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= 1024)

    return None, mask_mod


def _alibi(B: int, H: int, S: int, dtype: torch.dtype, device: Device = "cuda") -> Mods:
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + torch.exp2(-8 * (h + 1) / H) * (kv_idx - q_idx)

    return score_mod, causal_mask


def _softcap(
    B: int, H: int, S: int, dtype: torch.dtype, device: Device = "cuda"
) -> Mods:
    def score_mod(score, b, h, q_idx, kv_idx):
        return 20 * torch.tanh(score / 20)

    return score_mod, causal_mask


def _bias(B: int, H: int, S: int, dtype: torch.dtype, device: Device = "cuda") -> Mods:
    table = torch.randn(H, 2 * S, device=device, dtype=dtype)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + S]

    return score_mod, causal_mask


def _document(
    B: int, H: int, S: int, dtype: torch.dtype, device: Device = "cuda"
) -> Mods:
    generator = torch.Generator().manual_seed(0)
    cuts = torch.sort(torch.randperm(S - 1, generator=generator)[:11] + 1).values
    ids = torch.searchsorted(cuts, torch.arange(S), right=True)
    ids = ids.to(device, torch.int32)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])

    return None, mask_mod


ANCHORS = {
    anchor.name: anchor
    for anchor in (
        Anchor("dense", lambda *sizes: (None, None), sdpa={}, fa4={}),
        Anchor(
            "causal",
            lambda *sizes: (None, causal_mask),
            sdpa={"is_causal": True},
            fa4={"causal": True},
        ),
        Anchor("window", _window, fa4={"window_size": (1024, 0)}),
        Anchor("alibi", _alibi),
        Anchor("softcap", _softcap),
        Anchor("document", _document, planned=True),
        Anchor("bias", _bias),
    )
}
