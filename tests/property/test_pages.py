"""Keys in pages: every level computes what it does for contiguous keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flexc
from flexc.passes.targets.target import MachineName
from flexc.runtime.interpreters import run_module
from tests.property.cases import Case
from tests.property.lowering import attention_module, lowered, run_cpp
from tests.property.strategies import cases
from tests.property.test_levels import tiles
from tests.property.tolerance import check
from tests.support.pages import in_pages


def page_size(case: Case, size: int) -> int:
    """The largest divisor of the number of keys up to a size."""
    length = case.inputs[1].size(2)
    return next(n for n in range(size, 0, -1) if length % n == 0)


def given_masks(case: Case) -> tuple[Any, Any]:
    if case.block_mask is not None:
        return case.block_mask, None
    return None, case.given_mods[1]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["triton", "cpp", "gluon"])
@settings(max_examples=max(1, settings().max_examples // 5))
@given(
    cases(dtypes=(torch.bfloat16, torch.float16), longest=65),
    st.sampled_from((None, 16, 32)),
    st.sampled_from((1, 16, 64)),
)
def test_every_pass_preserves_the_meaning(
    target: str, case: Case, block: int | None, size: int
) -> None:
    _, key, value = case.inputs
    if key.size(2) == 0:
        return
    pages = in_pages(key, value, page_size(case, size))
    sizes = tiles(case, block)
    if target == "gluon":
        sizes = None, sizes[1]
    made = attention_module(
        case.inputs, case.given_mods[0], *given_masks(case), case.scale_value, pages
    )
    for name, module, args in lowered(*made, target, *sizes):
        check(case, *run_module(module, args), what=name)


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, settings().max_examples // 10))
@given(
    cases(dtypes=(torch.bfloat16,), longest=130),
    st.sampled_from((None, 32)),
    st.sampled_from((1, 16, 64)),
    st.sampled_from(("avx512_bf16", "amx")),
)
def test_packed_products_read_pages(
    case: Case, block: int | None, size: int, machine: MachineName
) -> None:
    """After each pass, and in C++, which computes what the host lacks."""
    _, key, value = case.inputs
    if key.size(2) == 0:
        return
    pages = in_pages(key, value, page_size(case, size))
    made = attention_module(
        case.inputs, case.given_mods[0], *given_masks(case), case.scale_value, pages
    )
    sizes = tiles(case, block)
    # All levels are one module, which each pass changes.
    for name, module, args in lowered(*made, "cpp", *sizes, machine):
        check(case, *run_module(module, args), what=name)
    check(case, *run_cpp(*made), what=machine)


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, settings().max_examples // 3))
@given(cases(longest=200), st.sampled_from((1, 16, 64, 128)), st.integers(0, 5))
def test_bits_are_those_of_contiguous_keys(case: Case, size: int, seed: int) -> None:
    query, key, value = case.inputs
    if key.size(2) == 0:
        return
    block_mask, mask_mod = given_masks(case)
    options: Any = {
        "score_mod": case.given_mods[0],
        "block_mask": block_mask,
        "mask_mod": mask_mod,
        "scale": case.scale_value,
        "enable_gqa": True,
        "return_lse": True,
    }
    pages = in_pages(key, value, page_size(case, size), seed)
    attend: Any = flexc.flex_attention
    expected = attend(query, key, value, **options)
    found = attend(query, pages.key, pages.value, page_table=pages.table, **options)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))
