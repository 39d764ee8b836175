"""What FlashAttention-4 reaches: the figures that flexc is to beat, on an H100.

Measured on 2026-11-21 on one H100 80GB (torch 2.11.0+cu130, flash-attn-4 4.0.0b36):
bf16, B=2 H=16 S=8192, TFLOP/s over unmasked pairs, a backward counted as 2.5 forwards.
"""

from __future__ import annotations

from typing import NamedTuple

SEQ = 8192
"""The only length that was measured."""


class Published(NamedTuple):
    """TFLOP/s of FA4, called directly and as the backend of torch's flex attention."""

    direct: float | None
    flex: float | None

    @property
    def best(self) -> float:
        return max(figure for figure in self if figure is not None)


FA4: dict[tuple[int, str, str], Published] = {
    (128, "dense", "fwd"): Published(675, 673),
    (128, "causal", "fwd"): Published(617, 593),
    (128, "window", "fwd"): Published(481, 388),
    (128, "alibi", "fwd"): Published(None, 416),
    (128, "softcap", "fwd"): Published(None, 325),
    (128, "document", "fwd"): Published(None, 250),
    (128, "bias", "fwd"): Published(None, 279),
    (128, "dense", "bwd"): Published(597, 615),
    (128, "causal", "bwd"): Published(561, 532),
    (128, "window", "bwd"): Published(407, 398),
    (128, "alibi", "bwd"): Published(None, 495),
    (128, "softcap", "bwd"): Published(None, 405),
    (128, "document", "bwd"): Published(None, 177),
    (128, "bias", "bwd"): Published(None, 412),
    (64, "dense", "fwd"): Published(520, 524),
    (64, "causal", "fwd"): Published(515, 429),
    (64, "window", "fwd"): Published(342, 306),
    (64, "alibi", "fwd"): Published(None, 269),
    (64, "softcap", "fwd"): Published(None, 182),
    (64, "document", "fwd"): Published(None, 147),
    (64, "bias", "fwd"): Published(None, 176),
    (64, "dense", "bwd"): Published(534, 530),
    (64, "causal", "bwd"): Published(486, 475),
    (64, "window", "bwd"): Published(345, 339),
    (64, "alibi", "bwd"): Published(None, 354),
    (64, "softcap", "bwd"): Published(None, 234),
    (64, "document", "bwd"): Published(None, 119),
    (64, "bias", "bwd"): Published(None, 256),
}
"""By head dim, variant and direction. FA4 has no kernels of head dim 256 for it."""


def published(
    machine: str, head_dim: int, seq: int, variant: str, direction: str
) -> float | None:
    """FA4's better figure, for a machine and a length that it was measured on."""
    found = FA4.get((head_dim, variant, direction))
    if found is None or "H100" not in machine or seq != SEQ:
        return None
    return found.best
