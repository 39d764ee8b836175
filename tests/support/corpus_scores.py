"""The corpus's score mods, some of them with a mask."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks

from tests.support.corpus_masks import causal_mask
from tests.support.problem import (
    Mods,
    Problem,
    case,
)


@case
def alibi(p: Problem) -> Mods:
    """A slope per head, computed from the head's number; causal."""
    heads = p.H

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + torch.exp2(-8 * (h + 1) / heads) * (kv_idx - q_idx)

    return score_mod, causal_mask


@case
def alibi_captured(p: Problem) -> Mods:
    """A captured slope per head; symmetric."""
    slopes = torch.exp2(-8 * torch.arange(1, p.H + 1) / p.H).to(p.device)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx).abs()

    return score_mod, None


@case
def soft_cap(p: Problem) -> Mods:
    """Scores bounded by a tanh; causal (Gemma 2)."""
    cap = 20.0

    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return score_mod, causal_mask


@case
def relative_bias(p: Problem) -> Mods:
    """A learned bias per head and distance."""
    table = p.normal(p.H, p.Sq + p.Skv)
    offset = p.Skv - 1

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + offset]

    return score_mod, None


@case
def clamped_relative_bias(p: Problem) -> Mods:
    """Distances beyond eight share a bias; bfloat16 (Shaw et al.)."""
    table = p.normal(17, p.H, dtype=torch.bfloat16)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[torch.clamp(q_idx - kv_idx, -8, 8) + 8, h]

    return score_mod, causal_mask


@case
def t5_buckets(p: Problem) -> Mods:
    """T5's bias: exact near the diagonal, logarithmic buckets further away.

    Edges are nudged by 1e-3, so that no bucket hangs on the rounding of `log`.
    """
    table = p.normal(32, p.H)

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = kv_idx - q_idx
        n = distance.abs()
        steps = torch.log(n.clamp(min=1) / 8.0) / math.log(16.0) * 8 + 1e-3
        far = torch.clamp(8 + steps.to(torch.int32), max=15)
        bucket = torch.where(distance > 0, 16, 0) + torch.where(n < 8, n, far)
        return score + table[bucket, h]

    return score_mod, None


@case
def pair_bias(p: Problem) -> Mods:
    """A captured bias for each head and pair (protein folding)."""
    bias = p.normal(p.H, p.Sq, p.Skv)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx, kv_idx]

    return score_mod, None


@case
def graph_distance(p: Problem) -> Mods:
    """A bias looked up by a looked-up distance (Graphormer)."""
    distance = p.integers(0, 6, p.Sq, p.Skv)
    table = p.normal(6, p.H)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[distance[q_idx, kv_idx], h]

    return score_mod, None


@case
def masked_by_score(p: Problem) -> Mods:
    """A causal mask written as a score of -inf."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    return score_mod, None


@case
def temperature(p: Problem) -> Mods:
    """A captured factor per head, bounded, as a logarithm (Swin v2)."""
    log_scale = p.normal(p.H)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * torch.exp(torch.clamp(log_scale[h], max=math.log(100.0)))

    return score_mod, None


@case
def gates(p: Problem) -> Mods:
    """Row and column gates through sigmoid and softplus."""
    row, column = p.normal(p.H, p.Sq), p.normal(p.B, p.Skv)

    def score_mod(score, b, h, q_idx, kv_idx):
        gate = torch.sigmoid(row[h, q_idx])
        return score * gate - torch.nn.functional.softplus(column[b, kv_idx])

    return score_mod, causal_mask


@case
def position_logarithm(p: Problem) -> Mods:
    """Scores grow with the logarithm of the row's position."""
    strength = torch.tensor(0.5, device=p.device)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * (1 + strength * torch.log1p(q_idx.to(torch.float32)))

    return score_mod, causal_mask


@case
def rotations(p: Problem) -> Mods:
    """Cosines of the distance at a frequency per head."""
    frequency = p.normal(p.H)

    def score_mod(score, b, h, q_idx, kv_idx):
        angle = (q_idx - kv_idx) * frequency[h]
        return score + torch.cos(angle) + 0.5 * torch.sin(angle)

    return score_mod, None


@case
def activations(p: Problem) -> Mods:
    """Activation functions, one inside the other."""
    functional = torch.nn.functional

    def score_mod(score, b, h, q_idx, kv_idx):
        return functional.silu(score) + functional.gelu(score) + torch.erf(score)

    return score_mod, None


@case
def uncommon_layouts(p: Problem) -> Mods:
    """Captured tensors that are transposed, expanded, sliced and 0-d."""
    transposed = p.normal(p.Skv, p.H).T
    expanded = p.normal(1, p.Sq).expand(p.H, p.Sq)
    sliced = p.normal(2 * p.Skv)[1::2]
    constant = torch.tensor(0.25, device=p.device)

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + transposed[h, kv_idx] + expanded[h, q_idx]
        return score * constant + sliced[kv_idx]

    return score_mod, None


@case
def negative_indices(p: Problem) -> Mods:
    """Captured tensors read from their end."""
    bias = p.normal(p.longest)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[-1 - kv_idx] - bias[-1]

    return score_mod, None


@case
def integer_bias(p: Problem) -> Mods:
    """Captured integers of several widths, and promotion among them."""
    small = p.integers(-3, 4, p.Skv).to(torch.int8)
    large = p.integers(-3, 4, p.H).to(torch.int64)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + (small[kv_idx] * large[h] + b)

    return score_mod, None


@case
def row_distances(p: Problem) -> Mods:
    """Norms, spreads and sums of exponentials of short captured rows."""
    at_q, at_k = p.normal(p.Sq, 3), p.normal(p.Skv, 3)

    def score_mod(score, b, h, q_idx, kv_idx):
        apart = at_q[q_idx] - at_k[kv_idx]
        return score - apart.norm() + apart.std() - apart.var() + apart.logsumexp(0)

    return score_mod, None


@case
def row_products(p: Problem) -> Mods:
    """Small products of captured rows and matrices, and a row's softmax."""
    at_q, at_k, mixed = p.normal(p.Sq, 3), p.normal(p.Skv, 3), p.normal(3, 3)

    def score_mod(score, b, h, q_idx, kv_idx):
        row, column = at_q[q_idx], at_k[kv_idx]
        product = torch.mm(row[None] @ mixed, column[:, None])[0, 0]
        cosine = torch.nn.functional.cosine_similarity(row, column, dim=0)
        return score + product + cosine + torch.dot(row.softmax(0), column)

    return score_mod, None


@case
def row_places(p: Problem) -> Mods:
    """Places of extremes in captured rows, gathered elements, and sets."""
    rows, weights = p.normal(p.Sq, 3), p.normal(p.H, 3)
    chosen = p.integers(0, p.Skv, 4)

    def score_mod(score, b, h, q_idx, kv_idx):
        place = (rows[q_idx] * weights[h]).argmax()
        gathered = weights[h].gather(0, place.reshape(1))[0]
        return score + torch.where((chosen == kv_idx).any(), gathered, 0.0)

    return score_mod, None


@case
def lookups(p: Problem) -> Mods:
    """Buckets of distances and of scores, counted and by bisection."""
    bias = p.normal(p.H, 8)
    short = torch.tensor([0, 1, 2, 4, 8, 16, 32], device=p.device)
    long = torch.linspace(-2, 2, 100, device=p.device)

    def score_mod(score, b, h, q_idx, kv_idx):
        bucket = torch.bucketize((q_idx - kv_idx).abs(), short)
        return score + bias[h, bucket] + torch.searchsorted(long, kv_idx / 64) / 50

    return score_mod, None


@dataclass
class WindowMask:
    """A mask with state, called like a function."""

    window: int

    def __call__(self, b, h, q_idx, kv_idx):
        return q_idx - kv_idx < self.window


def scaled_bias(bias: Tensor, factor: float, score, b, h, q_idx, kv_idx):
    return score + factor * bias[kv_idx]


@case
def callables(p: Problem) -> Mods:
    """A partial as score_mod, and a callable object as a part of mask_mod."""
    score_mod = functools.partial(scaled_bias, p.normal(p.Skv), 0.5)
    return score_mod, and_masks(causal_mask, WindowMask(max(1, p.Skv // 3)))
