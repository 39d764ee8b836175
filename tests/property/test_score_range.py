"""Bounds of scores hold for whatever score goes into a generated mod."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given

from flexc.dialects.flex import AttentionOp
from flexc.passes.flex.flex_infer_facts import (
    score_range,
    scores_finite,
    yielded_score,
)
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.scalar import Proven
from flexc.runtime.interpreters import run_region
from tests.property.cases import Case
from tests.property.lowering import context, flex_module
from tests.property.strategies import cases

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
N = 512


def pairs(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    """Scores of all sizes, some infinite or NaN, and positions."""
    generator = torch.Generator().manual_seed(case.seed)
    scores = torch.randn(N, generator=generator, dtype=dtype)
    scores *= torch.logspace(-3, 30, N, dtype=dtype)[torch.randperm(N)]
    scores[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    s = case.sizes
    sizes = (s.batch, s.heads, s.q_len, s.kv_len)
    indices = [torch.randint(n, (N,), generator=generator).int() for n in sizes]
    return [scores, *indices]


@given(cases(DTYPES, longest=65))
def test_scores_are_within_their_bounds(case: Case) -> None:
    module, args = flex_module(case)
    FlexSimplifyModsPass().apply(context(), module)
    op = next(o for o in module.walk() if isinstance(o, AttentionOp))
    captures: list[Any] = args[4 : 4 + len(op.captures)]
    numbers = [c if isinstance(c, int | float) else None for c in captures]
    dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    (scores,) = run_region(op.score_mod, [*pairs(case, dtype), *captures])
    scores = scores.expand(N).double()
    for known in ([None] * len(captures), numbers):
        value, ranges = yielded_score(op, known)
        bounds = ranges[value]
        numeric = scores[~scores.isnan()]
        assert ((numeric >= bounds.lo) & (numeric <= bounds.hi)).all(), bounds
        assert bounds.nan or len(numeric) == N
        proof = score_range(op, known)
        if not isinstance(proof, Proven):
            assert not isinstance(scores_finite(op, known), Proven)
            continue
        op.properties["score_range"] = proof.value
        assert op.score_range is not None
        lo, hi = op.score_range.bounds
        weighing = numeric[numeric != -torch.inf]
        assert ((weighing >= lo) & (weighing <= hi)).all(), (lo, hi)
