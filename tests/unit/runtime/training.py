"""What tests of derivatives share: dense attention of torch's, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BACKENDS = ("eager", "cpp")

Attention = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def tensors(
    *shape: int, count: int = 3, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Random tensors that require gradients."""
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in range(count)]


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    mask_mod: Any = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Out and lse, by torch's own operations, all of which have derivatives."""
    group = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    factor = 1 / math.sqrt(query.size(3)) if scale is None else scale
    scores = query @ key.transpose(-1, -2) * factor
    at = [
        torch.arange(n).view([-1 if a == axis else 1 for a in range(4)])
        for axis, n in enumerate(scores.shape)
    ]
    if score_mod is not None:
        scores = score_mod(scores, *at)
    live = torch.ones((), dtype=torch.bool) if mask_mod is None else mask_mod(*at)
    live = live.expand(scores.shape)
    scores = scores.masked_fill(~live, -torch.inf)
    empty = ~live.any(-1)
    # A row of -inf has no softmax that could be differentiated.
    scores = scores.masked_fill(empty[..., None], 0.0)
    out = (scores.softmax(-1) @ value).masked_fill(empty[..., None], 0.0)
    return out, scores.logsumexp(-1).masked_fill(empty, -torch.inf)


def gradients(
    fn: Callable[..., Any], inputs: Sequence[Tensor], *, unused: bool = False
) -> tuple[Tensor, ...]:
    """Gradients of a fixed functional of the results, with respect to all inputs."""
    results = fn()
    results = results if isinstance(results, tuple) else (results,)
    total = torch.zeros(())
    for i, result in enumerate(results):
        finite = torch.where(result.isinf(), 0.0, result)
        weights = torch.linspace(-1, 2 + i, finite.numel()).view(finite.shape)
        total = total + (finite * weights + finite.square()).sum()
    return torch.autograd.grad(total, inputs, allow_unused=unused)
