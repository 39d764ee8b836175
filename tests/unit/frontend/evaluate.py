"""Mods run twice: by torch on 0-d tensors, and as imported regions, made exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from xdsl.context import Context
from xdsl.dialects.func import FuncOp

from flexc.dialects.flex import AttentionOp
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import (
    AttentionCall,
    AttentionModule,
    build_attention_module,
)
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.runtime.interpreters import run_region

POINTS = [
    (-2.5, 0, 0, 0, 0),
    (-0.5, 0, 1, 3, 5),
    (0.0, 1, 2, 5, 3),
    (0.5, 1, 3, 7, 7),
    (1.5, 0, 2, 6, 1),
    (3.0, 1, 0, 1, 6),
    (30.0, 0, 3, 2, 4),
]
"""(score, b, h, q_idx, kv_idx); indices of heads are below 4, positions below 8."""

SCORES = torch.tensor([p[0] for p in POINTS])
INDICES = [torch.tensor([p[i] for p in POINTS]) for i in range(1, 5)]

CALL = AttentionCall(torch.float32, 64, 64)


def import_mods(
    score_mod: Any = None, mask_mod: Any = None, call: AttentionCall = CALL
) -> tuple[AttentionModule, list[Any]]:
    """A verified module and the values of its captures."""
    signature = read_mods(score_mod, mask_mod)
    mods = capture_mods(signature)
    built = build_attention_module(mods.score, mods.mask, call)
    built.module.verify()
    return built, built.arguments(signature.captures)


def attention_of(built: AttentionModule) -> AttentionOp:
    """The one `flex.attention` of a module."""
    (function,) = built.module.ops
    assert isinstance(function, FuncOp)
    op = function.body.block.first_op
    assert isinstance(op, AttentionOp)
    return op


def run_imported(score_mod: Any, mask_mod: Any = None) -> list[Tensor | None]:
    """Results of the imported regions at all points."""
    built, captures = import_mods(score_mod, mask_mod)
    FlexWidenIndicesPass().apply(Context(), built.module)
    op = attention_of(built)
    indices = [i.to(torch.int32) for i in INDICES]
    results: list[Tensor | None] = [None, None]
    if score_mod is not None:
        results[0] = run_region(op.score_mod, [SCORES, *indices, *captures])[0]
    if mask_mod is not None:
        results[1] = run_region(op.mask_mod, [*indices, *captures])[0]
    return [None if r is None else r.expand(len(POINTS)) for r in results]


def run_eager(mod: Callable[..., Any], columns: Sequence[Tensor]) -> Tensor:
    """What torch computes, point by point."""
    with TransformGetItemToIndex():
        results = [torch.as_tensor(mod(*point)) for point in zip(*columns, strict=True)]
    return torch.stack(results)


def check_score(mod: Callable[..., Any], rtol: float = 1e-6) -> None:
    """The imported score mod computes what torch computes."""
    got, _ = run_imported(mod)
    assert got is not None
    expected = run_eager(mod, [SCORES, *INDICES]).to(torch.float32)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-6, equal_nan=True)


def check_mask(mod: Callable[..., Any]) -> None:
    """The imported mask mod computes what torch computes."""
    _, got = run_imported(None, mod)
    assert got is not None
    expected = run_eager(mod, INDICES)
    assert got.tolist() == expected.tolist()
