"""Dense attention, slowly and in double precision: what everything is held to.

Nothing here knows flexc. Rows are independent, so the scores are made a few
rows of one head at a time and memory stays bounded at any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import TorchFunctionMode

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

CHUNK_ELEMENTS = 1 << 24
"""Scores held at a time; a mod's intermediates come on top."""


class Reference(NamedTuple):
    """What attention returns, with torch's meaning of each.

    A row with nothing to attend to has 0 in `out` and -inf in the others.
    """

    out: Tensor
    lse: Tensor
    max_scores: Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    precision: torch.dtype = torch.float64,
) -> Reference:
    """Attention of (B, H, Sq, E), (B, Hkv, Skv, E) and (B, Hkv, Skv, Ev).

    `precision` is that of the two matrix products; scores are kept in
    float32, or in float64 if the products are. With the inputs' own dtype
    it is what torch's unfused code would compute.
    """
    batch, heads, rows, head_dim = query.shape
    group = _group_size(query, key, enable_gqa)
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    work = torch.float64 if precision == torch.float64 else torch.float32
    out = query.new_zeros(batch, heads, rows, value.shape[-1], dtype=work)
    lse = query.new_full((batch, heads, rows), -torch.inf, dtype=work)
    max_scores = lse.clone()
    if key.shape[2] == 0:
        return Reference(out, lse, max_scores)
    for b in range(batch):
        b_kv = b if key.shape[0] > 1 else 0
        for h in range(heads):
            k = key[b_kv, h // group].to(precision)
            v = value[b_kv, h // group].to(precision)
            for some in _chunks(rows, key.shape[2]):
                scores = (query[b, h, some].to(precision) @ k.T).to(work) * factor
                scores = apply_mods(scores, score_mod, mask_mod, b, h, some.start)
                out[b, h, some] = (_softmax(scores).to(precision) @ v).to(work)
                lse[b, h, some] = scores.logsumexp(dim=-1)
                max_scores[b, h, some] = scores.amax(dim=-1)
    return Reference(out, lse, max_scores)


class LogSigmoidOfOps(TorchFunctionMode):
    """`F.logsigmoid` of ops that vmap takes on every device.

    On CUDA torch's own op has a second result without elements, at which torch 2.11's
    vmap fails: "SmallVector unable to grow".
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.logsigmoid and args[0].is_cuda:
            return log_sigmoid(args[0])
        return func(*args, **(kwargs or {}))


def log_sigmoid(x: Tensor) -> Tensor:
    return -torch.logaddexp(torch.zeros_like(x), -x)


def apply_mods(
    scores: Tensor,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    b: int,
    h: int,
    first_row: int,
) -> Tensor:
    """Modified and masked scores of some rows of one head."""

    def element(score: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        if score_mod is not None:
            score = score_mod(score, batch, head, q_idx, kv_idx).to(scores.dtype)
        if mask_mod is not None:
            keep = mask_mod(batch, head, q_idx, kv_idx)
            score = torch.where(keep, score, -torch.inf)
        return score

    if score_mod is None and mask_mod is None:
        return scores

    def index(start: int, end: int) -> Tensor:
        return torch.arange(start, end, device=scores.device)

    rows, columns = scores.shape
    batch, head = index(b, b + 1)[0], index(h, h + 1)[0]
    over_columns = torch.vmap(element, (0, None, 0))
    over_rows = torch.vmap(over_columns, (0, 0, None))
    with TransformGetItemToIndex(), LogSigmoidOfOps():
        return over_rows(scores, index(first_row, first_row + rows), index(0, columns))


def visible_pairs(
    mask_mod: MaskMod | None,
    h: int,
    rows: int,
    columns: int,
    device: torch.device | str = "cpu",
) -> int:
    """How many pairs of one head of the first batch a mask lets through."""
    if mask_mod is None:
        return rows * columns
    zeros = torch.zeros(1, columns, device=device)
    total = 0
    for some in _chunks(rows, columns):
        scores = zeros.expand(some.stop - some.start, columns)
        masked = apply_mods(scores, None, mask_mod, 0, h, some.start)
        total += int((masked == 0).sum())
    return total


def _softmax(scores: Tensor) -> Tensor:
    """Softmax in which a row of -inf has weight 0 everywhere."""
    weights = torch.softmax(scores, dim=-1)
    nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return torch.where(nothing, torch.zeros_like(weights), weights)


def _chunks(rows: int, columns: int) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def _group_size(query: Tensor, key: Tensor, enable_gqa: bool) -> int:
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads == kv_heads:
        return 1
    if not enable_gqa or heads % kv_heads:
        raise ValueError(
            f"expected equal head counts, or enable_gqa and a multiple of the "
            f"{kv_heads} key heads, got {heads} query heads"
        )
    return heads // kv_heads
