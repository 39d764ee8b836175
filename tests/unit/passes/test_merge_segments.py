"""Merged segments visit what the segments did, at every level."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.blocksparse import SegmentKind, SegmentOp
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.interpreters import run_module
from tests.support.corpus import CORPUS
from tests.support.flex_modules import make_call, make_module
from tests.support.reference import attention

HEADS, LENGTH, DIM = 2, 256, 16


@pytest.mark.parametrize("tables", [False, True], ids=["bounds", "tables"])
@pytest.mark.parametrize("case", ["causal", "sliding_window", "documents", "alibi"])
def test_meaning_is_kept(case: str, tables: bool) -> None:
    score_mod, mask_mod = CORPUS[case].factory(1, HEADS, HEADS, LENGTH, LENGTH)
    assert mask_mod is not None
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, HEADS, LENGTH, DIM, generator=generator, dtype=torch.float16)
        for _ in range(3)
    )
    mask: Any = mask_mod
    if tables:
        mask = create_block_mask(
            mask_mod, 1, HEADS, LENGTH, LENGTH, "cpu", BLOCK_SIZE=64
        )
    module, args = make_module(make_call((query, key, value), score_mod, mask, 0.25))

    convert = ConvertFlexToBlocksparsePass("triton", block_m=64, block_n=32)
    exact = attention(query, key, value, score_mod, mask_mod, scale=0.25)
    merged = False
    for each in (*pipelines.to_blocksparse(convert), *pipelines.to_tile("triton")):
        each.apply(Context(), module)
        module.verify()
        if each.name not in LEVELS:
            continue
        merged |= has_mixed_segment(module)
        out, lse = run_module(module, args)
        check(out, exact.out)
        check(lse, exact.lse)
    assert merged == (tables or case == "sliding_window")


LEVELS = ("blocksparse-merge-segments", "convert-blocksparse-to-tile", "licm")


def has_mixed_segment(module: ModuleOp) -> bool:
    segments = [op for op in module.walk() if isinstance(op, SegmentOp)]
    return any(op.kind.data == SegmentKind.MIXED for op in segments)


def check(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), atol=5e-3, rtol=5e-3)
