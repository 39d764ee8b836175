"""Running a generated case through `flexc.flex_attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from tests.property.cases import Case
from tests.property.tolerance import check
from tests.support.filled_memory import poisoned


def check_backend(case: Case, backend: str, block: int | None = None) -> None:
    """All outputs of a backend against the reference.

    `block` asks for tiles of this size, where no table has a say in it.
    """
    score_mod, mask_mod = case.given_mods
    tiles = {}
    if block is not None and case.block_mask is None:
        tiles = {"BLOCK_M": block, "BLOCK_N": block}
    with torch.no_grad(), poisoned():
        result: Any = flexc.flex_attention(
            *case.inputs,
            score_mod,
            block_mask=case.block_mask,
            mask_mod=None if case.block_mask is not None else mask_mod,
            scale=case.scale,
            enable_gqa=True,
            kernel_options=tiles,
            return_aux=AuxRequest(lse=True, max_scores=True),
            backend=backend,
        )
    out, aux = result
    check(case, out, aux.lse, aux.max_scores, what=backend)
