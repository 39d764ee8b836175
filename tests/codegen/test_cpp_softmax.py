"""Softmaxes that bounds of the scores made simpler, in C++ and by the interpreter.

Scores are pushed to their bounds, and beyond what the mod bounds.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.interpreters import run_module
from tests.codegen.cpp_kernels import attention_text, lower, parse, run_attention
from tests.support.pairwise import pairwise
from tests.support.reference import attention

HALF_MASKED = """
%two = arith.constant 2 : i32
%zero = arith.constant 0 : i32
%odd = arith.remsi %qi, %two : i32
%row = arith.cmpi eq, %odd, %zero : i32
%column = arith.cmpi sge, %ki, %qi : i32
%c = arith.andi %row, %column : i1
flex.yield %c : i1
"""
"""Odd rows see nothing, and the first blocks of late rows are wholly masked."""

CAPS = (5.0, 20.0, 30.0, 50.0)
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 5e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 3e-3,
}
SHIFTED = {
    torch.float64: CAPS,
    torch.float32: (5.0, 20.0, 30.0),
    torch.bfloat16: (5.0, 20.0, 30.0),
    torch.float16: (5.0,),
}
"""Caps for which no maximum is needed, by what weights are rounded to."""


def soft_cap(cap: float) -> str:
    return f"""
%cap = arith.constant {cap:e} : SCORE
%x = arith.divf %s, %cap : SCORE
%t = math.tanh %x : SCORE
%y = arith.mulf %t, %cap : SCORE
flex.yield %y : SCORE
"""


def text(dtype: torch.dtype, cap: float) -> str:
    return attention_text(dtype, 16, 16, score_mod=soft_cap(cap), mask_mod=HALF_MASKED)


@cache
def kernel(dtype: torch.dtype, cap: float) -> KernelSpec:
    return lower(text(dtype, cap), 32, 32)


@cache
def tile_module(dtype: torch.dtype, cap: float) -> ModuleOp:
    ctx, module = parse(text(dtype, cap))
    convert = ConvertFlexToBlocksparsePass("cpp", 32, 32)
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("cpp"))
    pipelines.run(passes, ctx, module)
    module.verify()
    return module


def inputs(dtype: torch.dtype, size: float, rows: int, columns: int) -> list[Tensor]:
    """Scores of about `size` with either sign, and rows with one sign only."""
    query, key, value = (torch.randn(1, 1, n, 16) for n in (rows, columns, columns))
    key[..., 0], query[..., 1:] = 4, query[..., 1:] / 16
    query[..., ::3, 0], query[..., 1::6, 0] = -1, 1
    query *= size / 4
    return [t.to(dtype) for t in (query, key, value)]


def check(dtype: torch.dtype, cap: float, tensors: list[Tensor], interpret: bool):
    query, key, value = tensors
    if interpret:
        out, lse = run_module(tile_module(dtype, cap), [*tensors, 1.0])
    else:
        out, lse = run_attention(kernel(dtype, cap), query, key, value, 1.0)
    want = attention(
        query, key, value,
        lambda s, b, h, q, k: cap * torch.tanh(s / cap),
        lambda b, h, q, k: (q % 2 == 0) & (k >= q),
        scale=1.0,
    )  # fmt: skip
    near = TOLERANCE[dtype]
    torch.testing.assert_close(
        out.double(), want.out, atol=near, rtol=near, equal_nan=True
    )
    rows = min(near, 1e-4)
    torch.testing.assert_close(
        lse.double(), want.lse, atol=rows, rtol=rows, equal_nan=True
    )
    assert (out[:, :, 1::2] == 0).all()
    assert (lse[:, :, 1::2] == -math.inf).all()


@pytest.mark.parametrize("dtype", SHIFTED, ids=str)
@pytest.mark.parametrize("cap", CAPS)
def test_loops_keep_no_maximum_where_bounds_are_close(
    dtype: torch.dtype, cap: float
) -> None:
    carried = {
        len(op.iter_args)
        for op in tile_module(dtype, cap).walk()
        if isinstance(op, scf.ForOp)
    }
    assert carried == {2 if cap in SHIFTED[dtype] else 3}


@pytest.mark.parametrize(
    ("dtype", "cap", "size", "interpret"),
    pairwise(list(SHIFTED), CAPS, [0.5, 20.0, 1e4], [False, True]),
    ids=str,
)
def test_scores_up_to_their_bounds(
    dtype: torch.dtype, cap: float, size: float, interpret: bool
) -> None:
    check(dtype, cap, inputs(dtype, size, 70, 130), interpret)


@pytest.mark.parametrize("dtype", SHIFTED, ids=str)
@pytest.mark.parametrize("cap", CAPS)
def test_long_rows(dtype: torch.dtype, cap: float) -> None:
    check(dtype, cap, inputs(dtype, 30.0, 4, 20_000), interpret=False)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("interpret", [False, True], ids=["cpp", "interpreter"])
def test_infinite_scores_and_nan(cap: float, interpret: bool) -> None:
    query, key, value = inputs(torch.float32, 5.0, 70, 130)
    query[0, 0, 2, 0], query[0, 0, 4, 0] = math.inf, -math.inf
    query[0, 0, 6, 3] = math.nan
    key[0, 0, 69, 2] = math.nan
    check(torch.float32, cap, [query, key, value], interpret)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cap", CAPS)
def test_huge_values_overflow_no_sooner(dtype: torch.dtype, cap: float) -> None:
    query, key, value = inputs(dtype, 1e4, 40, 90)
    value = torch.ones_like(value) * 1e36
    out, _ = run_attention(kernel(dtype, cap), query, key, value, 1.0)
    torch.testing.assert_close(out[:, :, ::2], value[:, :, :20])
