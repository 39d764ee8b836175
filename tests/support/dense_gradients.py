"""Dense attention that torch can differentiate, in double precision and twice.

Written pair by pair on repeated heads, unlike `reference.attention`, which is for
long calls. Nothing here knows flexc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.support.reference import MaskMod, ScoreMod


class Pairs(NamedTuple):
    """What attention computes of all pairs, (B, Hq, Sq, Skv) each."""

    scores: Tensor
    """Scaled dot products."""
    modified: Tensor
    """What score_mod makes of them; -inf where a mask hides a pair."""
    live: Tensor
    weights: Tensor
    """Softmax, 0 in rows that see nothing."""


class Results(NamedTuple):
    """The output, 0 for a row that sees nothing, and lse, -inf for such a row."""

    out: Tensor
    lse: Tensor


class IndexAsOp(TorchFunctionMode):
    """Reads `x[i]` by 0-d tensors as an op that is differentiable twice, under vmap.

    torch's own `TransformGetItemToIndex` makes one that is only once. Reads of single
    elements are kept, and what `probes` has for them is added.
    """

    def __init__(self, probes: Sequence[Tensor] = ()):
        super().__init__()
        self.probes = probes
        self.reads: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(i, Tensor) for i in index):
                return self.read(args[0], index)
        return func(*args, **(kwargs or {}))

    def read(self, tensor: Tensor, index: tuple[Tensor, ...]) -> Tensor:
        found = torch.ops.aten.index(tensor, index) if index else tensor
        if found.dim() == 0 and found.is_floating_point():
            self.reads.append(found)
            if self.probes:
                found = found + self.probes[len(self.reads) - 1]
        return found


def grid(shape: Sequence[int]) -> list[Tensor]:
    """b, h, q_idx and kv_idx of all pairs, in a row."""
    found = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    return [index.flatten() for index in found]


def modify(scores: Tensor, score_mod: ScoreMod | None) -> Tensor:
    """What score_mod makes of the scores of all pairs."""
    if score_mod is None or not scores.numel():
        return scores
    indices = [i.to(scores.device) for i in grid(scores.shape)]
    with IndexAsOp():
        modified = torch.vmap(score_mod)(scores.flatten(), *indices)
    return modified.view(scores.shape).to(scores.dtype)


def live_pairs(
    mask_mod: MaskMod | None, shape: Sequence[int], device: torch.device
) -> Tensor:
    if mask_mod is None or not math.prod(shape):
        return torch.ones(shape, dtype=torch.bool, device=device)
    with IndexAsOp():
        live = torch.vmap(mask_mod)(*(i.to(device) for i in grid(shape)))
    return live.view(shape)


def repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """A key's or value's heads and batches, once for each of the query's."""
    batch, heads = query.shape[:2]
    tensor = tensor.expand(batch, *tensor.shape[1:])
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def scale_of(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[3]) if scale is None else scale


def pairs_of(
    query: Tensor,
    key: Tensor,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float | None = None,
) -> Pairs:
    """All pairs; key heads are shared where there are fewer.

    Scores of half precision are kept in float32, as their products are not.
    """
    dots = query @ repeated(key, query).mT
    dots = dots.to(torch.promote_types(dots.dtype, torch.float32))
    scores = dots * scale_of(query, scale)
    modified = modify(scores, score_mod)
    live = live_pairs(mask_mod, scores.shape, query.device)
    modified = torch.where(live, modified, -torch.inf)
    return Pairs(scores, modified, live, softmax(modified)[0])


def softmax(modified: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and lse; a row of -inf has weights 0, and no gradient but 0."""
    if not modified.shape[-1]:
        return modified, modified.new_full(modified.shape[:-1], -torch.inf)
    largest = modified.detach().amax(-1, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    weights = torch.exp(modified - largest)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, largest + torch.log(total))
    return weights / total, lse.squeeze(-1)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    *,
    scale: float | None = None,
) -> Results:
    """Attention and lse, with products of the dtype of the inputs.

    In half precision, what torch's unfused code computes.
    """
    pairs = pairs_of(query, key, score_mod, mask_mod, scale)
    weights, lse = softmax(pairs.modified)
    return Results(weights.to(value.dtype) @ repeated(value, query), lse)
