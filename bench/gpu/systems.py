"""The contestants, by the name that results give them.

A system is a function from a problem to a `Contest`, or to None where it does not know
such a problem. What it cannot do, though it should, it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.problem import Problem, leaves

MATMUL = "matmul"
"""Not attention: the rate at which the machine multiplies large matrices."""


MAX_LISTED = 1 << 14
"""Tokens up to which torch makes its own BlockMasks: for 32,768 that takes 10 GB, and
flexc makes equal ones."""


@dataclass(frozen=True)
class Contest:
    """How a system computes attention of a problem."""

    forward: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]
    d_out: Tensor
    heads_last: bool = False
    """The output is (B, S, H, D)."""

    @classmethod
    def of(cls, problem: Problem, forward: Callable[[], Tensor]) -> Contest:
        return cls(forward, problem.inputs, problem.d_out)

    def standard(self, out: Tensor) -> Tensor:
        """The output as (B, H, S, D)."""
        return out.transpose(1, 2) if self.heads_last else out


System = Callable[[Problem], Contest | None]


def block_mask(problem: Problem, make: Callable[..., Any]) -> Any:
    """The problem's mask, made by torch's or by flexc's `create_block_mask`."""
    mask_mod = problem.mods[1]
    device = problem.d_out.device.type
    if max(problem.lengths) > MAX_LISTED:
        make = flexc.create_block_mask
    return mask_mod and make(mask_mod, None, None, *problem.lengths, device=device)


def _flexc(problem: Problem, score_mod: Any, **others: Any) -> Contest:
    def forward() -> Tensor:
        out: Any = flexc.flex_attention(*problem.qkv, score_mod=score_mod, **others)
        return out

    return Contest.of(problem, forward)


def _mask(problem: Problem) -> dict[str, Any]:
    """The bare function, unless it has no bounds in closed form: then a plan of it,
    which is made beforehand as torch's is."""
    if problem.anchor is not None and problem.anchor.planned:
        return {"block_mask": block_mask(problem, flexc.create_block_mask)}
    return {"mask_mod": problem.mods[1]}


def by_flexc(problem: Problem) -> Contest:
    return _flexc(problem, problem.mods[0], **_mask(problem))


def without_mod(problem: Problem) -> Contest | None:
    """flexc on the same mask without the score mod: what the mod costs."""
    if problem.mods[0] is None or len(problem.inputs) > 3:
        return None
    return _flexc(problem, None, **_mask(problem))


def of_equal_bits(problem: Problem) -> Contest | None:
    """Gradients that are the same at every run: what that costs."""
    if not problem.backward:
        return None
    options = {"deterministic": True}
    return _flexc(problem, problem.mods[0], kernel_options=options, **_mask(problem))


def planned_at_each_call(problem: Problem) -> Contest | None:
    """The bare function where `flexc` is given a plan."""
    if "block_mask" not in _mask(problem):
        return None
    return _flexc(problem, problem.mods[0], mask_mod=problem.mods[1])


def by_tables(problem: Problem) -> Contest | None:
    """flexc, given torch's BlockMask."""
    if problem.mods[1] is None:
        return None
    made = block_mask(problem, torch_flex.create_block_mask)
    return _flexc(problem, problem.mods[0], block_mask=made)


def _torch(problem: Problem, **options: Any) -> Contest:
    compiled: Any = torch.compile(torch_flex.flex_attention, dynamic=False)
    made = block_mask(problem, torch_flex.create_block_mask)
    score_mod = problem.mods[0]

    def forward() -> Tensor:
        return compiled(*problem.qkv, score_mod=score_mod, block_mask=made, **options)

    return Contest.of(problem, forward)


def by_torch(problem: Problem) -> Contest:
    return _torch(problem)


def by_torch_flash(problem: Problem) -> Contest:
    """torch's flex attention with FA4 as its backend."""
    return _torch(problem, kernel_options={"BACKEND": "FLASH"})


def by_cudnn(problem: Problem) -> Contest | None:
    anchor = problem.anchor
    arguments = anchor and anchor.sdpa
    if arguments is None or problem.qkv[0].size(3) > 256:
        return None

    def forward() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(*problem.qkv, **arguments)

    return Contest.of(problem, forward)


def by_fa4(problem: Problem, **options: Any) -> Contest | None:
    """FlashAttention-4 itself, with heads where it wants them."""
    if problem.anchor is None or problem.anchor.fa4 is None:
        return None
    from flash_attn.cute import flash_attn_func  # pyright: ignore

    arguments = problem.anchor.fa4 | options
    inputs = tuple(t.detach().transpose(1, 2).contiguous() for t in problem.qkv)
    inputs = leaves(*inputs) if problem.backward else inputs

    def forward() -> Tensor:
        result: Any = flash_attn_func(*inputs, **arguments)
        return result[0] if isinstance(result, tuple) else result

    d_out = problem.d_out.transpose(1, 2).contiguous()
    return Contest(forward, inputs, d_out, heads_last=True)


def fa4_of_equal_bits(problem: Problem) -> Contest | None:
    return by_fa4(problem, deterministic=True) if problem.backward else None


SYSTEMS: dict[str, System] = {
    "flexc": by_flexc,
    "flexc-deterministic": of_equal_bits,
    "flexc-without-mod": without_mod,
    "flexc-mask-mod": planned_at_each_call,
    "flexc-tables": by_tables,
    "torch-flex": by_torch,
    "torch-flex-flash": by_torch_flash,
    "cudnn": by_cudnn,
    "fa4": by_fa4,
    "fa4-deterministic": fa4_of_equal_bits,
}

PEERS = ("torch-flex", "torch-flex-flash", "fa4", "cudnn")
BY_FA4 = ("torch-flex-flash", "fa4", "fa4-deterministic")
"""Those that need the package flash-attn-4."""
DEFAULT = ("flexc", "flexc-deterministic", *PEERS, "fa4-deterministic", MATMUL)
