"""The contestants, by the name that results give them.

A system is a function from a problem to a call that computes it, or to None where it
does not know such a problem. What it cannot do, though it should, it raises.

Nobody's planning is timed: torch is given BlockMasks that were made before, and flexc
one of its own where its mask has no bounds in closed form. `flexc-mask-mod` plans at
each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.problem import Problem

Forward = Callable[[], Tensor]
System = Callable[[Problem], Forward | None]

MAX_BIAS = 1 << 30
"""Bytes of a mask or bias for SDPA; a larger one is left out."""

ADDITIVE = ("alibi", "steep-alibi")
"""Variants whose scores are those of a bias."""


def every_pair(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A mask that torch lists blocks for, all of them full."""
    return q_idx >= 0


def has_groups(problem: Problem) -> bool:
    query, key, _ = problem.qkv
    return query.size(1) != key.size(1)


def _flexc(problem: Problem, **mask: Any) -> Forward:
    score_mod, grouped = problem.mods[0], has_groups(problem)

    def forward() -> Tensor:
        out: Any = flexc.flex_attention(
            *problem.qkv, score_mod=score_mod, enable_gqa=grouped, **mask
        )
        return out

    return forward


def _is_planned(problem: Problem) -> bool:
    return problem.anchor is not None and problem.anchor.planned


def by_flexc(problem: Problem) -> Forward:
    mask_mod = problem.mods[1]
    if mask_mod is None or not _is_planned(problem):
        return _flexc(problem, mask_mod=mask_mod)
    made = flexc.create_block_mask(mask_mod, None, None, *problem.lengths, device="cpu")
    return _flexc(problem, block_mask=made)


def planned_at_each_call(problem: Problem) -> Forward | None:
    """The bare function where `flexc` is given a plan."""
    if not _is_planned(problem):
        return None
    return _flexc(problem, mask_mod=problem.mods[1])


def _torch(problem: Problem, mask_mod: Any) -> Forward:
    compiled: Any = torch.compile(torch_flex.flex_attention, dynamic=False)
    score_mod, grouped = problem.mods[0], has_groups(problem)
    lengths = problem.lengths
    make = torch_flex.create_block_mask
    if max(lengths) > 8192:  # torch's own looks at every pair; flexc's is equal.
        make = flexc.create_block_mask
    made = mask_mod and make(mask_mod, None, None, *lengths, device="cpu")

    def forward() -> Tensor:
        return compiled(
            *problem.qkv, score_mod=score_mod, block_mask=made, enable_gqa=grouped
        )

    return forward


def by_torch(problem: Problem) -> Forward:
    """The usual way: no BlockMask where there is no mask."""
    return _torch(problem, problem.mods[1])


def by_torch_blocks(problem: Problem) -> Forward | None:
    """With a BlockMask of all blocks, which torch's code goes through one by one."""
    if problem.mods[1] is not None or problem.lengths[0] == 1:
        return None
    return _torch(problem, every_pair)


def by_sdpa(problem: Problem) -> Forward | None:
    """With a dense mask or bias, where neither `is_causal` nor nothing says it."""
    assert problem.anchor is not None
    arguments: dict[str, Any] | None = problem.anchor.sdpa
    grouped = has_groups(problem)
    if arguments is None:
        made = attn_mask(problem)
        arguments = {"attn_mask": made}
        if made is None:
            return None

    def forward() -> Tensor:
        return scaled_dot_product_attention(
            *problem.qkv, enable_gqa=grouped, **arguments
        )

    return forward


def attn_mask(problem: Problem) -> Tensor | None:
    """What SDPA takes for the mods; None if they are none, or too large."""
    score_mod, mask_mod = problem.mods
    query, key, _ = problem.qkv
    heads = 1 if score_mod is None else query.size(1)
    size = heads * query.size(2) * key.size(2)
    size *= 1 if score_mod is None else query.element_size()
    name = None if problem.anchor is None else problem.anchor.name
    if size > MAX_BIAS or (score_mod is not None and name not in ADDITIVE):
        return None
    h = torch.arange(heads)[:, None, None]
    q_idx = torch.arange(query.size(2))[:, None]
    kv_idx = torch.arange(key.size(2))
    zero = torch.tensor(0)
    if score_mod is None:
        return mask_mod and mask_mod(zero, zero, q_idx, kv_idx)[None, None]
    return score_mod(torch.zeros(()), zero, h, q_idx, kv_idx)[None].to(query.dtype)


SYSTEMS: dict[str, System] = {
    "flexc": by_flexc,
    "flexc-mask-mod": planned_at_each_call,
    "torch-flex": by_torch,
    "torch-flex-blocks": by_torch_blocks,
    "sdpa": by_sdpa,
}
