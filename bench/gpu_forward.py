"""Forward: flexc, torch.compile(flex_attention) and cuDNN on the anchors' variants."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.gpu_table import Result, Run, Setup, Table
from bench.variants import Anchor
from tests.reference import attention, visible_pairs

OWN = ("flexc", "mask_mod", "tables")

TABLE = Table((*OWN, "torch", "cudnn"), "unfused")


def contestants(
    anchor: Anchor, setup: Setup
) -> tuple[dict[str, Run], float, float, int]:
    """Runs by name, flexc's and the unfused error, and pairs per head."""
    query, key, value = setup.inputs()
    device = setup.device
    mods = anchor.build(setup.batch, setup.heads, setup.seq, setup.dtype, device)
    score_mod, mask_mod = mods
    lengths = (setup.seq, setup.seq)
    block_mask = mask_mod and torch_flex.create_block_mask(
        mask_mod, None, None, *lengths, device=device
    )
    own_mask = mask_mod and flexc.create_block_mask(
        mask_mod, None, None, *lengths, device=device
    )
    torch._dynamo.reset()
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)

    def flexc_run(**mask: Any) -> Run:
        return lambda: flexc.flex_attention(
            query, key, value, score_mod=score_mod, **mask
        )

    def torch_run() -> Any:
        return compiled(query, key, value, score_mod=score_mod, block_mask=block_mask)

    def cudnn_run() -> Any:
        return scaled_dot_product_attention(query, key, value, **(anchor.sdpa or {}))

    runs: dict[str, Run] = {
        "flexc": flexc_run(block_mask=own_mask),
        "mask_mod": flexc_run(mask_mod=mask_mod),
        "tables": flexc_run(block_mask=block_mask),
        "torch": torch_run,
    }
    if mask_mod is None:
        del runs["mask_mod"], runs["tables"]
    if anchor.sdpa is not None and setup.head_dim <= 256:
        runs["cudnn"] = cudnn_run
    first = (query[:1], key[:1], value[:1])
    exact = attention(*first, *mods).out
    unfused = attention(*first, *mods, precision=setup.dtype).out.to(setup.dtype)
    errors = [
        (runs[name]()[:1] - exact).abs().max().item() for name in runs if name in OWN
    ]
    pairs = visible_pairs(mask_mod, 0, *lengths, device)
    return runs, max(errors), (unfused - exact).abs().max().item(), pairs


def measure(anchor: Anchor, setup: Setup) -> Result:
    """Check one variant, then let all take turns."""
    runs, error, unfused, pairs = contestants(anchor, setup)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        medians = setup.medians(runs)
    flops = 4 * setup.batch * setup.heads * setup.head_dim * pairs
    tflops = {name: flops / seconds / 1e12 for name, seconds in medians.items()}
    return Result(anchor.name, tflops, error, unfused)
