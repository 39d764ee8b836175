"""Merged segments visit what the segments did, at every level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.blocksparse import SegmentKind, SegmentOp
from flexc.frontend.capture import capture_mods
from flexc.frontend.import_graph import build_attention_module
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.attention.call import (
    Attention,
    Outputs,
    read_signature,
)
from flexc.runtime.inputs.arguments import split_block_mask
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.interpreters import run_module
from tests.support.corpus import CORPUS
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
    block_mask = None
    if tables:
        block_mask = create_block_mask(
            mask_mod, 1, HEADS, LENGTH, LENGTH, "cpu", BLOCK_SIZE=64
        )
    given = (block_mask, None) if tables else (None, mask_mod)
    mask, found = split_block_mask(*given, query, key)
    signature = read_signature(score_mod, mask, query.device)
    call = Attention(
        query, key, value, 0.25, found, signature, Outputs(lse=True), "triton",
        NO_CHOICES,
    )  # fmt: skip
    mods = capture_mods(signature, call.score_dtype)
    made = build_attention_module(mods.score, mods.mask, call.build().call)
    args = [query, key, value, 0.25, *made.arguments(signature.captures)]
    args += found.tensors if found is not None else []

    convert = ConvertFlexToBlocksparsePass("triton", block_m=64, block_n=32)
    exact = attention(query, key, value, score_mod, mask_mod, scale=0.25)
    merged = False
    for each in (*pipelines.to_blocksparse(convert), *pipelines.to_tile("triton")):
        each.apply(Context(), made.module)
        made.module.verify()
        if each.name not in LEVELS:
            continue
        merged |= has_mixed_segment(made.module)
        out, lse = run_module(made.module, args)
        check(out, exact.out)
        check(lse, exact.lse)
    assert merged == (tables or case == "sliding_window")


LEVELS = ("blocksparse-merge-segments", "convert-blocksparse-to-tile", "licm")


def has_mixed_segment(module: ModuleOp) -> bool:
    segments = [op for op in module.walk() if isinstance(op, SegmentOp)]
    return any(op.kind.data == SegmentKind.MIXED for op in segments)


def check(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), atol=5e-3, rtol=5e-3)
