"""Conversion of the arguments of `flex_attention` to a call that is ready to run."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.closures import Mod
from flexc.runtime.attention.call import Attention, read_signature
from flexc.runtime.inputs.arguments import Outputs, cast_and_check, split_block_mask
from flexc.runtime.inputs.options import Choices, resolve_backend
from flexc.runtime.interception import check_not_traced, check_not_transformed


def prepared_call(
    tensors: tuple[Tensor, Tensor, Tensor],
    mods: tuple[Mod | None, BlockMask | None, Mod | None],
    enable_gqa: bool,
    scale: float | None,
    outputs: Outputs,
    choices: Choices,
    is_traced: bool,
) -> Attention:
    """Check the arguments, and return a call that is ready to run or to be captured."""
    if is_traced:
        check_not_transformed()
    else:
        check_not_traced(tensors[0])
    query, key, value = cast_and_check(*tensors, enable_gqa)
    score_mod, block_mask, mask_mod = mods
    resolved = resolve_backend(choices.backend, query.device)
    mask, tables = split_block_mask(block_mask, mask_mod, query, key)
    call = Attention(
        query,
        key,
        value,
        1.0 / math.sqrt(query.size(3)) if scale is None else scale,
        tables,
        read_signature(score_mod, mask, query.device),
        outputs,
        resolved,
        choices,
    )
    if not is_traced:
        call.check_memory()
    return call
