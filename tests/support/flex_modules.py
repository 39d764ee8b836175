"""Calls of attention as `flex` modules, with the arguments to run these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from xdsl.dialects.builtin import ModuleOp

from flexc.frontend.capture import capture_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.runtime.attention.call import Attention, Outputs, read_signature
from flexc.runtime.inputs.arguments import split_block_mask

LSE = Outputs(lse=True)
LSE_AND_MAX = Outputs(lse=True, max_scores=True)


def make_call(
    inputs: Sequence[Tensor],
    score_mod: Any,
    mask: Any,
    scale: float,
    outputs: Outputs = LSE,
    backend: str = "triton",
) -> Attention:
    """Return a call with a mask that is a mod, a BlockMask or None."""
    query, key, value = inputs
    given = (mask, None) if isinstance(mask, BlockMask) else (None, mask)
    mask_mod, tables = split_block_mask(*given, query, key)
    signature = read_signature(score_mod, mask_mod, query.device)
    return Attention(query, key, value, scale, tables, signature, outputs, backend)


def make_module(
    call: Attention, build: AttentionCall | None = None
) -> tuple[ModuleOp, list[Any]]:
    """Return the `flex` module of a call, or of a `build` of it, and the arguments."""
    mods = capture_mods(call.signature, call.score_dtype)
    build = call.build().call if build is None else build
    made = build_attention_module(mods.score, mods.mask, build)
    args = [*call.operands, call.scale, *made.arguments(call.signature.captures)]
    args += [] if call.tables is None else call.tables.tensors
    args += [] if call.pages is None else [call.pages.table]
    return made.module, [*args, *call.scales.given]
