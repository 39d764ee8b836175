"""Heads of a group as rows: at every level, and compiled, what dense attention says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.flex_fold_heads import FlexFoldHeadsPass
from flexc.passes.targets.cpp import FEW_ROWS
from flexc.passes.targets.target import MachineName
from flexc.runtime.attention.few_rows import folded_rows
from flexc.runtime.interpreters import run_module
from tests.property.calls import check_backend
from tests.property.cases import Case, Sizes
from tests.property.lowering import changes, flex_module
from tests.property.strategies import cases
from tests.property.tolerance import check

HEAD_DIMS = (1, 8, 20, 64)


@st.composite
def few(draw: Any) -> Sizes:
    """Sizes with as many rows for each key head as a program may own."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.sampled_from((1, 2, 3, 4, 7)))
    return Sizes(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=draw(st.integers(1, FEW_ROWS // group)),
        kv_len=draw(st.sampled_from((1, 5, 64, 131, 300))),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        value_dim=draw(st.sampled_from(HEAD_DIMS)),
    )


def unfolded(case: Case, results: list[Tensor]) -> list[Tensor]:
    """Results by query heads."""
    heads, q_len = case.sizes.heads, case.sizes.q_len
    return [
        r.unflatten(2, (heads // case.sizes.kv_heads, q_len)).flatten(1, 2)
        for r in results
    ]


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 2)
@given(cases(shapes=few()), st.sampled_from(("avx512", "avx2")))
def test_every_pass_preserves_the_meaning(case: Case, machine: MachineName) -> None:
    if case.block_size is not None:  # Tables are folded by the runtime.
        return
    sizes = case.sizes
    module, args = flex_module(case)
    args[0] = folded_rows(args[0], sizes.kv_heads)
    convert = ConvertFlexToBlocksparsePass("cpp", machine=machine)
    passes = (
        FlexFoldHeadsPass(sizes.heads // sizes.kv_heads, sizes.q_len),
        *pipelines.to_blocksparse(convert),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp(machine),
    )
    for name in changes(module, passes):
        results = unfolded(case, run_module(module, args))
        check(case, *results, what=name)


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 2)
@given(cases(shapes=few(), dtypes=(torch.float32, torch.bfloat16)))
def test_compiled_results_are_those_of_dense_attention(case: Case) -> None:
    check_backend(case, "cpp")
