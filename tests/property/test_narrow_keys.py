"""Keys and values of 8 bits with scales: as dense attention of what they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from flexc.runtime.inputs.arguments import NARROW, Scales
from flexc.runtime.interpreters import run_module
from tests.property.cases import Case
from tests.property.lowering import attention_module, lowered
from tests.property.strategies import cases
from tests.property.test_levels import tiles
from tests.property.test_pages import given_masks, page_size
from tests.property.tolerance import Tolerance, check_empty_rows, close
from tests.support.pages import in_pages

SHORTER = 0.8
"""What keeps scores within a case's bound, whatever 8 bits make of keys."""

Kept = tuple[Tensor, Tensor | None]
"""Narrow numbers and their scale."""


def narrowed(x: Tensor, dtype: torch.dtype, per: str) -> Kept:
    """Numbers of 8 bits, whose largest are the dtype's largest, and the scale."""
    if per == "none" or dtype not in NARROW:
        return x.to(dtype), None
    dims = (3,) if per == "key" else (2, 3)
    largest = x.abs().amax(dims, keepdim=True) if x.numel() else x.sum(dims, True)
    is_int = dtype == torch.int8
    top = 127.0 if is_int else torch.finfo(dtype).max
    scale = (largest.double() / top).clamp(min=1e-30).float()
    exact = (x.double() / scale.double()).clamp(-top, top)
    scale = scale.squeeze(3) if per == "key" else scale.squeeze(3).squeeze(2)
    return (exact.round() if is_int else exact).to(dtype), scale


def meant(kept: Kept) -> Tensor:
    """The numbers that narrow ones stand for."""
    x, scale = kept[0].double(), kept[1]
    if scale is None:
        return x
    return x * scale.double().view(*scale.shape, *[1] * (4 - scale.dim()))


def narrow_case(case: Case, dtypes: Any, per: Any) -> tuple[Case, Kept, Kept]:
    """A case whose reference is that of narrow keys and values, and these."""
    query, key, value = case.inputs
    found = [dtype or case.dtype for dtype in dtypes]
    keys = narrowed(key * SHORTER, found[0], per[0])
    values = narrowed(value, found[1], per[1])
    made = replace(case)
    made.__dict__["inputs"] = query, meant(keys), meant(values)
    return made, keys, values


def check(case: Case, out: Tensor, rest: Any, what: str, rounds_values: bool) -> None:
    """Hold results to the reference; values may be rounded once more to fp16."""
    allowed, expected = Tolerance.of(case), case.expected
    slack = 0.0
    if rounds_values and case.inputs[2].numel():
        slack = torch.finfo(case.dtype).eps * float(case.inputs[2].abs().max())
    close(f"{what}: out", out, expected.out, allowed.out + slack)
    close(f"{what}: lse", rest[0], expected.lse, allowed.lse)
    close(f"{what}: max_scores", rest[1], expected.max_scores, allowed.max_scores)
    check_empty_rows(what, out, expected)


stored = st.tuples(st.sampled_from((*NARROW, None)), st.sampled_from(NARROW))
pers = st.tuples(*[st.sampled_from(("none", "head", "key"))] * 2)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["triton", "cpp"])
@settings(max_examples=max(1, settings().max_examples // 5))
@given(
    cases(longest=65),
    st.sampled_from((None, 16, 32)),
    stored,
    pers,
    st.sampled_from((None, 1, 16)),
)
def test_every_pass_preserves_the_meaning(
    target: str, case: Case, block: int | None, dtypes: Any, per: Any, size: int | None
) -> None:
    case, (key, key_scale), (value, value_scale) = narrow_case(case, dtypes, per)
    pages = None
    if size is not None and key.size(2):
        pages = in_pages(key, value, page_size(case, size))
    made = attention_module(
        (case.inputs[0], key, value),
        case.given_mods[0],
        *given_masks(case),
        case.scale_value,
        pages,
        Scales(key_scale, value_scale),
    )
    for name, module, args in lowered(*made, target, *tiles(case, block)):
        out, *rest = run_module(module, args)
        check(case, out, rest, name, case.dtype == torch.float16)


@pytest.mark.timeout(3600)
@settings(max_examples=max(1, settings().max_examples // 3))
@given(
    cases(longest=200), stored, pers, st.sampled_from((None, 1, 16, 64)), st.booleans()
)
def test_results_are_those_of_what_keys_stand_for(
    case: Case, dtypes: Any, per: Any, size: int | None, max_scores: bool
) -> None:
    case, (key, key_scale), (value, value_scale) = narrow_case(case, dtypes, per)
    block_mask, mask_mod = given_masks(case)
    table = None
    if size is not None and key.size(2):
        key, value, table = in_pages(key, value, page_size(case, size))
    result: Any = flexc.flex_attention(
        case.inputs[0],
        key,
        value,
        case.given_mods[0],
        block_mask,
        case.scale_value,
        enable_gqa=True,
        mask_mod=mask_mod,
        return_aux=AuxRequest(lse=True, max_scores=max_scores),
        page_table=table,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    out, aux = result
    # A kernel that computes no maxima may have a constant shift.
    largest = aux.max_scores if max_scores else case.expected.max_scores
    check(case, out, (aux.lse, largest), "cpp", case.dtype == torch.float16)
