"""Variants of the GPU benchmark that differentiate what their mods capture.

The definitions are those of the anchors, with the captured tensor to be learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.corpus import Device, Mods
from tests.support.corpus_masks import causal_mask


@dataclass(frozen=True)
class Learned:
    """A score mod of one tensor that is learned, on a causal mask."""

    name: str
    draw: Callable[[int, int, torch.dtype, Device], Tensor]
    """Of H, S, the inputs' dtype and the device."""
    mods: Callable[[Tensor], Mods]


def _bias(table: Tensor) -> Mods:
    S = table.size(1) // 2

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + S]

    return score_mod, causal_mask


def _slopes(H: int, S: int, dtype: torch.dtype, device: Device) -> Tensor:
    return torch.exp2(-8 * torch.arange(1, H + 1, device=device) / H)


def _alibi(slopes: Tensor) -> Mods:
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return score_mod, causal_mask


def _t5(table: Tensor) -> Mods:
    """Exact up to 15, logarithmic up to 127: T5's buckets of a causal model.

    Edges are nudged by 1e-3, so that no bucket hangs on the rounding of `log`.
    """

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).clamp(min=0)
        steps = torch.log(distance.clamp(min=1) / 16.0) / math.log(8.0) * 16 + 1e-3
        far = torch.clamp(16 + steps.to(torch.int32), max=31)
        return score + table[torch.where(distance < 16, distance, far), h]

    return score_mod, causal_mask


LEARNED = {
    variant.name: variant
    for variant in (
        Learned(
            "learned-bias",
            lambda H, S, dtype, device: torch.randn(H, 2 * S, device=device).to(dtype),
            _bias,
        ),
        Learned("learned-alibi", _slopes, _alibi),
        Learned(
            "learned-t5",
            lambda H, S, dtype, device: torch.randn(32, H, device=device).to(dtype),
            _t5,
        ),
    )
}
