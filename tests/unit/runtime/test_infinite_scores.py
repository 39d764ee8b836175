"""Rows with infinite scores and with NaN are what torch makes of them: with inf, out
is NaN and lse inf; with NaN all is NaN; with nothing but -inf out is 0 and lse -inf."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from flexc.runtime.interpreters import run_module
from tests.property.lowering import attention_module, lowered
from tests.support.dense_gradients import attention
from tests.support.infinite_scores import (
    INF,
    MODS,
    SCALES,
    added,
    check,
    expected,
    tensors,
)
from tests.support.pairwise import in_turn
from tests.support.reference import Reference

SCALE = 0.25


def results(*inputs: Any, backend: str = "cpp", **kwargs: Any) -> Reference:
    aux = AuxRequest(lse=True, max_scores=True)
    with torch.no_grad():
        result: Any = flexc.flex_attention(
            *inputs, return_aux=aux, backend=backend, **kwargs
        )
    out, rest = result
    return Reference(out, rest.lse, rest.max_scores)


@pytest.mark.parametrize("backend", ["cpp", "eager"])
@pytest.mark.parametrize("name", MODS)
def test_mods(name: str, backend: str) -> None:
    inputs = tensors()
    found = results(*inputs, MODS[name], scale=SCALE, backend=backend)
    check(found, expected(*inputs, MODS[name], SCALE))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["all inner", "some", "rows", "slopes"])
def test_other_types(name: str, dtype: torch.dtype) -> None:
    inputs = tensors(dtype)
    found = results(*inputs, MODS[name], scale=SCALE)
    tol = 2e-2 if dtype.itemsize == 2 else 1e-6
    check(found, expected(*inputs, MODS[name], SCALE), tol=tol)


@pytest.mark.parametrize("backend", ["cpp", "eager"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [1.0, 1e15, 1e20])
@pytest.mark.parametrize("sign", [None, 1, -1])
def test_scales(scale: float, size: float, sign: int | None, backend: str) -> None:
    """Dot products that overflow, or do where they are scaled."""
    query, key, value = tensors()
    if sign is not None:
        query, key = query.abs() * sign, key.abs()
    query, key = query * size, key * size
    found = results(query, key, value, scale=scale, backend=backend)
    check(found, expected(query, key, value, None, scale))


LEVELS = [None, "small steps", "NaN after", "rows", "some"]


@pytest.mark.parametrize(
    ("name", "target"), in_turn(LEVELS, ["triton", "cpp", "gluon"])
)
def test_levels(name: str | None, target: str) -> None:
    """Every level of the IR says the same."""
    half = target == "gluon"
    inputs = tensors(torch.bfloat16 if half else torch.float32)
    mod = None if name is None else MODS[name]
    scale = SCALE
    if name is None:
        scale, inputs = 1e8, (inputs[0] * 1e15, inputs[1] * 1e15, inputs[2])
    want = expected(*inputs, mod, scale)
    module, args = attention_module(inputs, mod, None, None, scale)
    blocks = (64, 16) if half else (16, 16)
    for level, each, given in lowered(module, args, target, *blocks):
        found = Reference(*run_module(each, given))
        check(found, want, level, tol=2e-2 if half else 3e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_infinities_of_torch() -> None:
    """What this is held to is what torch's flex attention returns."""
    inputs = tensors()
    for mod in (added(k5=INF), added(k5=-INF), added(k5=math.nan), MODS["all masked"]):
        want = expected(*inputs, mod, SCALE)
        got: Any = torchs.flex_attention(*inputs, mod, scale=SCALE, return_lse=True)
        out, lse = got
        check(Reference(out, lse, want.max_scores), want)


# Gradients.


@pytest.mark.parametrize("name", ["infinity", "NaN", "constants", "rows", "chosen"])
def test_gradients(name: str) -> None:
    """Of such rows, and of what they see, they are NaN: none is a zero."""
    query, key, value = inputs = [t.requires_grad_() for t in tensors()]
    mod = MODS[name]
    found: Any = flexc.flex_attention(
        query, key, value, mod, mask_mod=causal, scale=SCALE
    )
    d_out = torch.randn_like(found)
    got = torch.autograd.grad(found, inputs, d_out)
    dense = attention(query, key, value, mod, causal, scale=SCALE)
    want = torch.autograd.grad(dense.out, inputs, d_out)
    for one, other in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)
    # Keys that such a row does not see are not looked at for it.
    assert (got[2].isnan() <= want[2].isnan()).all()
    assert got[2].isnan().any() == want[2].isnan().any()


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k <= q
