"""The corpus's masks: affine ones first, then those that read captured tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks, or_masks

from tests.support.problem import (
    Mods,
    Problem,
    case,
)


def causal_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


# Masks that are affine in the two indices.


@case
def dense(p: Problem) -> Mods:
    """No mods at all."""
    return None, None


@case
def causal(p: Problem) -> Mods:
    """Each row sees the columns up to its own."""
    return None, causal_mask


@case
def causal_bottom_right(p: Problem) -> Mods:
    """Causal with the last row aligned to the last column, as in decoding."""
    offset = p.Skv - p.Sq

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx + offset >= kv_idx

    return None, mask_mod


@case
def sliding_window(p: Problem) -> Mods:
    """Causal within a window."""
    window = max(1, p.Skv // 8)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window)

    return None, mask_mod


@case
def symmetric_window(p: Problem) -> Mods:
    """A band around the diagonal, written with `abs`."""
    window = max(1, p.Skv // 8)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() <= window

    return None, mask_mod


@case
def attention_sinks(p: Problem) -> Mods:
    """A causal window, and the first four columns for ever (StreamingLLM)."""
    window = max(1, p.Skv // 8)

    def mask_mod(b, h, q_idx, kv_idx):
        near = (q_idx - kv_idx < window) | (kv_idx < 4)
        return near & (q_idx >= kv_idx)

    return None, mask_mod


@case
def chunked(p: Problem) -> Mods:
    """Causal within chunks of equal length (Llama 4)."""
    chunk = max(1, p.Skv // 5)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx // chunk == kv_idx // chunk) & (q_idx >= kv_idx)

    return None, mask_mod


@case
def dilated(p: Problem) -> Mods:
    """Every third column of a causal window."""
    reach = max(3, p.Skv // 4)

    def mask_mod(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance >= 0) & (distance < reach) & (distance % 3 == 0)

    return None, mask_mod


@case
def strided(p: Problem) -> Mods:
    """A local window or every eighth column (sparse transformers)."""

    def local(b, h, q_idx, kv_idx):
        return q_idx - kv_idx < 16

    def global_columns(b, h, q_idx, kv_idx):
        return kv_idx % 8 == 7

    return None, and_masks(causal_mask, or_masks(local, global_columns))


@case
def neighbourhood_2d(p: Problem) -> Mods:
    """A square of pixels around each pixel, shifted inwards at the borders."""
    width = max(1, math.isqrt(p.Skv))
    height = -(-p.Skv // width)
    radius_x, radius_y = min(3, (width - 1) // 2), min(3, (height - 1) // 2)

    def mask_mod(b, h, q_idx, kv_idx):
        x = (q_idx % width).clamp(radius_x, width - 1 - radius_x)
        y = (q_idx // width).clamp(radius_y, height - 1 - radius_y)
        dx, dy = kv_idx % width - x, kv_idx // width - y
        return (dx.abs() <= radius_x) & (dy.abs() <= radius_y)

    return None, mask_mod


@case
def checkerboard(p: Problem) -> Mods:
    """Every second pair."""

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx + kv_idx) % 2 == 0

    return None, mask_mod


@case
def sierpinski(p: Problem) -> Mods:
    """Pairs whose indices share no bit: no affine fact holds."""

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx & kv_idx) == 0

    return None, mask_mod


@case
def shifted_blocks(p: Problem) -> Mods:
    """Blocks of sixteen by shifts, and an exclusive or."""

    def mask_mod(b, h, q_idx, kv_idx):
        return ((q_idx >> 4) ^ (kv_idx >> 4)) <= 1

    return None, mask_mod


@case
def floored_difference(p: Problem) -> Mods:
    """Division and remainder of negative numbers round towards minus infinity."""

    def mask_mod(b, h, q_idx, kv_idx):
        return ((q_idx - kv_idx) // 3 >= -2) & ((q_idx - kv_idx) % 4 != 3)

    return None, mask_mod


@case
def some_rows_empty(p: Problem) -> Mods:
    """Every third row sees nothing."""

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx % 3 != 0) & (kv_idx <= q_idx)

    return None, mask_mod


@case
def nothing(p: Problem) -> Mods:
    """No pair at all."""

    def mask_mod(b, h, q_idx, kv_idx):
        return kv_idx < 0

    return None, mask_mod


@case
def everything(p: Problem) -> Mods:
    """A mask that is always true."""

    def mask_mod(b, h, q_idx, kv_idx):
        return kv_idx >= 0

    return None, mask_mod


# Masks that read captured tensors.


@case
def prefix_lm(p: Problem) -> Mods:
    """A prefix of its own length in each batch is seen by all, then causal."""
    prefix = p.integers(0, p.Skv, p.B)

    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx < prefix[b]) | (q_idx >= kv_idx)

    return None, mask_mod


@case
def documents(p: Problem) -> Mods:
    """Causal within documents packed in one sequence."""
    ids = p.documents(p.longest, 12)

    def mask_mod(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    return None, mask_mod


@case
def documents_per_batch(p: Problem) -> Mods:
    """Documents that lie differently in each batch; both directions."""
    ids = torch.stack([p.documents(p.longest, 5) for _ in range(p.B)])

    def mask_mod(b, h, q_idx, kv_idx):
        return ids[b, q_idx] == ids[b][kv_idx]

    return None, mask_mod


@case
def padding(p: Problem) -> Mods:
    """Keys past each batch's length are padding."""
    lengths = p.integers(1, p.Skv + 1, p.B)

    def mask_mod(b, h, q_idx, kv_idx):
        return kv_idx < lengths[b]

    return None, mask_mod


@case
def head_windows(p: Problem) -> Mods:
    """A window of its own for each query head."""
    windows = (2 ** (torch.arange(p.H) % 6 + 2)).to(p.device, torch.int32)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < windows[h])

    return None, mask_mod


@case
def boolean_table(p: Problem) -> Mods:
    """A captured dense boolean mask, the tree of speculative decoding, say."""
    table = p.integers(0, 3, p.Sq, p.Skv) != 0

    def mask_mod(b, h, q_idx, kv_idx):
        return table[q_idx, kv_idx]

    return None, mask_mod


@case
def random_blocks(p: Problem) -> Mods:
    """Random blocks, one pattern for each head (BigBird)."""
    table = p.integers(0, 4, p.H, -(-p.Sq // 16), -(-p.Skv // 16)) == 0

    def mask_mod(b, h, q_idx, kv_idx):
        return table[h, q_idx // 16, kv_idx // 16] | (q_idx // 16 == kv_idx // 16)

    return None, mask_mod


@case
def pages(p: Problem) -> Mods:
    """Columns are slots of shuffled pages; the mask is causal in what they hold."""
    page = 8
    order = torch.randperm(-(-p.Skv // page), generator=p.generator).to(p.device)

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx >= order[kv_idx // page] * page + kv_idx % page

    return None, mask_mod


@case
def modalities(p: Problem) -> Mods:
    """Text is causal; pixels of one image see each other."""
    ids = p.documents(p.longest, 7)
    is_image = p.integers(0, 2, 8) == 1

    def same_image(b, h, q_idx, kv_idx):
        document = ids[q_idx]
        return is_image[document] & (document == ids[kv_idx])

    return None, or_masks(causal_mask, same_image)
