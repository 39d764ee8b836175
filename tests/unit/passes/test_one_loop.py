"""One loop over all blocks, in parts and with delayed products, means what many did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects import tile
from flexc.dialects.blocksparse import SegmentKind, SegmentOp
from flexc.dialects.tile.schedule import PartsOp
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.interpreters import run_module
from tests.support.flex_modules import LSE_AND_MAX, make_call, make_module
from tests.support.reference import Reference, attention

LEVELS = ("blocksparse-merge-segments", "tile-delay-products")

DOCUMENT = torch.arange(400) // 150
TABLE = torch.arange(160_000).reshape(400, 400) % 7 > 2
COLUMN_BIAS = torch.arange(400) % 11 - 5.0
LENGTHS = torch.tensor([130, 0])

MASKS = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 70),
    "sinks": lambda b, h, q, k: ((q - k <= 50) | (k < 4)) & (q >= k),
    "documents": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "captured": lambda b, h, q, k: TABLE[q, k],
    "lengths": lambda b, h, q, k: k < LENGTHS[b],
    "empty_rows": lambda b, h, q, k: (q % 3 != 0) & (k <= q - 200),
}

SCORES = {
    "none": None,
    "bias": lambda s, b, h, q, k: s + COLUMN_BIAS[k],
    "cap": lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
}


@dataclass(frozen=True)
class Call:
    """A call of attention, small."""

    mask: str
    score: str = "none"
    q_len: int = 256
    kv_len: int = 256
    tables: bool = False
    head_dim: int = 16
    value_dim: int = 16
    dtype: torch.dtype = torch.float16

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = (
            (2, 2, self.q_len, self.head_dim),
            (2, 1, self.kv_len, self.head_dim),
            (2, 1, self.kv_len, self.value_dim),
        )
        return [torch.randn(s, generator=generator).to(self.dtype) for s in shapes]

    def module(self) -> tuple[ModuleOp, list[Any], Reference]:
        """The module, its arguments, and what it should give."""
        call, exact = self.made(SCORES[self.score], LSE_AND_MAX)
        return *make_module(call), exact

    def made(self, score_mod: Any, outputs: Outputs) -> tuple[Attention, Reference]:
        """Return the call with a score mod, and its expected result."""
        (query, key, value), mask_mod = self.inputs(), MASKS[self.mask]
        mask: Any = mask_mod
        if self.tables:
            assert mask_mod is not None
            mask = create_block_mask(
                mask_mod, 2, None, self.q_len, self.kv_len, "cpu", BLOCK_SIZE=128
            )
        call = make_call((query, key, value), score_mod, mask, 0.25, outputs)
        exact = attention(
            query, key, value, score_mod, mask_mod, scale=0.25, enable_gqa=True
        )
        return call, exact


CALLS = {
    "dense": Call("none"),
    "dense-odd": Call("none", q_len=200, kv_len=333),
    "dense-one-key": Call("none", "cap", q_len=70, kv_len=1),
    "bias-odd": Call("none", "bias", q_len=130, kv_len=257),
    "causal": Call("causal"),
    "causal-odd": Call("causal", "bias", q_len=333, kv_len=301),
    "causal-tables-odd": Call("causal", "cap", q_len=333, kv_len=333, tables=True),
    "window": Call("window", q_len=384, kv_len=384),
    "window-odd": Call("window", "bias", q_len=333, kv_len=200),
    "sinks": Call("sinks", q_len=384, kv_len=384),
    "documents": Call("documents", q_len=384, kv_len=384, tables=True),
    "documents-odd": Call("documents", "bias", q_len=385, kv_len=301, tables=True),
    "captured": Call("captured", q_len=250, kv_len=301),
    "captured-tables": Call("captured", q_len=200, kv_len=301, tables=True),
    "lengths": Call("lengths", q_len=200, kv_len=301),
    "empty-rows": Call("empty_rows", q_len=390, kv_len=384),
    "empty-rows-tables": Call("empty_rows", q_len=390, kv_len=399, tables=True),
    "head-dims": Call("causal", head_dim=96, value_dim=64, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_meaning_is_kept(call: Call) -> None:
    module, args, exact = call.module()
    convert = ConvertFlexToBlocksparsePass("gluon", block_m=128, block_n=64)
    passes = (
        *pipelines.to_blocksparse(convert),
        *pipelines.to_tile("gluon"),
        *pipelines.to_schedule(),
    )
    for each in passes:
        pipelines.run((each,), Context(), module)
        module.verify()
        if each.name in LEVELS:
            check(call, run_module(module, args), exact)
        if each.name == "blocksparse-merge-segments":
            assert len(segments(module)) == 1
            assert segments(module)[0].is_entered
        if each.name == "tile-delay-products":
            break
    (parts,) = [op for op in module.walk() if isinstance(op, PartsOp)]
    assert parts.count.value.data == 2
    (loop,) = [op for op in parts.walk() if isinstance(op, scf.ForOp)]
    dots = [op for op in parts.walk() if isinstance(op, tile.DotOp)]
    assert [dot.parent_op() is loop for dot in dots] == [False, True, True, False]


def test_aligned_dense_attention_has_a_plain_loop() -> None:
    """It has no branch, and compares nothing with the number of keys."""
    module, _, _ = CALLS["dense"].module()
    convert = ConvertFlexToBlocksparsePass("gluon")
    pipelines.run(pipelines.to_blocksparse(convert), Context(), module)
    (segment,) = segments(module)
    assert segment.kind.data == SegmentKind.FULL
    assert segment.inside is not None
    assert segment.padded is None
    pipelines.run(pipelines.to_tile("gluon"), Context(), module)
    assert not [op for op in module.walk() if isinstance(op, scf.IfOp)]


def segments(module: ModuleOp) -> list[SegmentOp]:
    return [op for op in module.walk() if isinstance(op, SegmentOp)]


def check(call: Call, got: list[Tensor], exact: Reference) -> None:
    rounding = 2e-2 if call.dtype == torch.bfloat16 else 4e-3
    wanted = (exact.out, exact.lse, exact.max_scores)
    for value, want, allowed in zip(got, wanted, (rounding, 4e-3, 4e-3), strict=True):
        assert want is not None
        torch.testing.assert_close(
            value.double(), want.double(), atol=allowed, rtol=allowed
        )
