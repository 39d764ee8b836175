"""Every level of the IR computes what dense attention in double precision does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexc.passes import pipelines
from flexc.passes.targets.target import MachineName
from flexc.runtime.interpreters import run_module
from tests.property.cases import Case
from tests.property.lowering import levels
from tests.property.strategies import cases
from tests.property.tolerance import check


def tiles(case: Case, block: int | None) -> tuple[int | None, int | None]:
    """Small tiles, so that small problems have many; a table's are left alone."""
    return (None, None) if case.block_size is not None else (block, block)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["triton", "cpp"])
@settings(max_examples=settings().max_examples * 3 // 5)  # two dozen runs each
@given(cases(longest=65), st.sampled_from((None, 16, 32)))
def test_every_pass_preserves_the_meaning(
    target: str, case: Case, block: int | None
) -> None:
    for name, module, args in levels(case, target, *tiles(case, block)):
        # A kernel's outputs are made by the interpreter, filled with NaN.
        check(case, *run_module(module, args), what=name)


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples * 2 // 5)
@given(
    cases(dtypes=(torch.bfloat16, torch.float16)),
    st.sampled_from((None, 64, 128)),
    st.sampled_from((16, 64)),
)
def test_every_pass_of_a_schedule_preserves_the_meaning(
    case: Case, block_m: int | None, block_n: int
) -> None:
    """One loop over all blocks, parts, delayed products, roles."""
    sizes = (None, None) if case.block_size is not None else (block_m, block_n)
    for name, module, args in levels(case, "gluon", *sizes):
        if any(level in name for level in SCHEDULING):
            check(case, *run_module(module, args), what=name)


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 5)
@given(
    cases(dtypes=(torch.bfloat16,), longest=65),
    st.sampled_from((None, 16, 32)),
    st.sampled_from(("avx512_bf16", "amx")),
)
def test_every_pass_of_packed_products_preserves_the_meaning(
    case: Case, block: int | None, machine: MachineName
) -> None:
    for name, module, args in levels(case, "cpp", *tiles(case, block), machine):
        if any(each.name in name for each in pipelines.to_cpp(machine)):
            check(case, *run_module(module, args), what=name)


SCHEDULING = ("merge", "convert", "split-rows", "delay", "specialize", "async")
"""Names of the passes after which a schedule's meaning may have changed."""
