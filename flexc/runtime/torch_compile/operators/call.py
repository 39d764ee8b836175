"""What `flexc.flex_attention` is to Dynamo, which traces this file's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    _identity,
    noop_mask,
)

from flexc.runtime.inputs.arguments import NO_BLOCKS
from flexc.runtime.torch_compile.graph_call import BACKEND_OPTION
from flexc.runtime.torch_compile.operators.higher_order import (
    DYNAMO_KNOWS,
    FLEXC_OPERATOR,
    GQA,
    LSE,
    MASKED,
    MAX_SCORES,
    REFUSED,
)


def traced_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None,
    block_mask: BlockMask | None,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Mapping[str, Any] | None,
    return_aux: AuxRequest | None,
    mask_mod: Callable[..., Any] | None,
    backend: str,
) -> Any:
    """One operator in Dynamo's graph, and its results as a user asks for them."""
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_max = return_aux is not None and return_aux.max_scores
    options = dict(kernel_options or {})
    options[BACKEND_OPTION] = backend
    options[GQA] = enable_gqa
    options[LSE] = wants_lse
    options[MAX_SCORES] = wants_max
    options[MASKED] = mask_mod is not None or block_mask is not None
    if return_lse and return_aux is not None:
        options[REFUSED] = "give return_lse or return_aux, not both"
    if mask_mod is not None and block_mask is not None:
        options[REFUSED] = "give block_mask or mask_mod, not both"
    out, lse, max_scores = FLEXC_OPERATOR(
        query,
        key,
        value,
        _identity if score_mod is None else score_mod,
        _operands_of_mask(query, key, block_mask, mask_mod),
        scale,
        options,
    )
    if return_aux is not None:
        aux_lse = lse if wants_lse else None
        return out, AuxOutput(lse=aux_lse, max_scores=max_scores if wants_max else None)
    return (out, lse) if return_lse else out


def _operands_of_mask(
    query: Tensor,
    key: Tensor,
    block_mask: BlockMask | None,
    mask_mod: Callable[..., Any] | None,
) -> tuple[Any, ...]:
    """Lengths, tables, size of blocks and mask, in the order of torch's operator."""
    if block_mask is None:
        lengths = (query.size(2), key.size(2))
        mask = noop_mask if mask_mod is None else mask_mod
        return (*lengths, *[None] * 8, NO_BLOCKS, NO_BLOCKS, mask)
    rows, columns = block_mask.BLOCK_SIZE
    tables = (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
        block_mask.q_num_blocks,
        block_mask.q_indices,
        block_mask.full_q_num_blocks,
        block_mask.full_q_indices,
    )
    if min(rows, columns) >= NO_BLOCKS:
        tables = (None,) * 8
    return (*block_mask.seq_lengths, *tables, rows, columns, block_mask.mask_mod)


in_graphs = traced_attention if DYNAMO_KNOWS else None
"""What Dynamo traces; None where it does not know the operator."""
