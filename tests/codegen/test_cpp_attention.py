"""Attention kernels in C++: emitted from IR, compiled, run, held to the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.codegen.cpp_kernels import attention_text, lower, run_attention
from tests.support.corpus_masks import causal_mask
from tests.support.pairwise import in_turn
from tests.support.reference import attention
from tests.support.threads import torch_threads

CAUSAL = """
%c = arith.cmpi sge, %qi, %ki : i32
flex.yield %c : i1
"""
SOFTCAP = """
%cap = arith.constant 2.0 : SCORE
%x = arith.divf %s, %cap : SCORE
%t = math.tanh %x : SCORE
%y = arith.mulf %t, %cap : SCORE
flex.yield %y : SCORE
"""
ALIBI = """
%slope = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
%d = arith.subi %ki, %qi : i32
%f = arith.sitofp %d : i32 to f32
%p = arith.mulf %slope, %f : f32
%r = arith.addf %s, %p : f32
flex.yield %r : f32
"""
RELATIVE = """
%d = arith.subi %qi, %ki : i32
%bias = flex.load_capture %table_[%h, %d] : tensor<?x?xbf16>, i32, i32
%f = arith.extf %bias : bf16 to f32
%r = arith.addf %s, %f : f32
flex.yield %r : f32
"""
DOCUMENTS = """
%x = flex.load_capture %ids_[%qi] : tensor<?xi32>, i32
%y = flex.load_capture %ids_[%ki] : tensor<?xi32>, i32
%c = arith.cmpi eq, %x, %y : i32
flex.yield %c : i1
"""
NOTHING = "%f = arith.constant false\nflex.yield %f : i1"

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}
SCALE = 0.3


def inputs(
    dtype: torch.dtype, q_len: int, kv_len: int, head_dim: int, value_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(2, 4, q_len, head_dim, dtype=dtype)
    key = torch.randn(2, 2, kv_len, head_dim, dtype=dtype)
    value = torch.randn(2, 2, kv_len, value_dim, dtype=dtype)
    return query, key, value


def check(text: str, tensors: tuple[Tensor, Tensor, Tensor], captures=(), **mods):
    query, key, value = tensors
    out, lse = run_attention(lower(text), query, key, value, SCALE, captures)
    want = attention(query, key, value, scale=SCALE, enable_gqa=True, **mods)
    tolerance = TOLERANCE[query.dtype]
    torch.testing.assert_close(out.double(), want.out, atol=tolerance, rtol=tolerance)
    rows = max(1e-12, min(tolerance, 1e-5))
    torch.testing.assert_close(lse.double(), want.lse, atol=rows, rtol=rows)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    in_turn(
        [(130, 257, 64, 64), (1, 1, 1, 1), (5, 40, 40, 24), (70, 128, 7, 130)],
        list(TOLERANCE),
    ),
    ids=str,
)
def test_dense(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """Of queries and keys, and of the dims of heads and of values."""
    tensors = inputs(dtype, *sizes)
    check(attention_text(dtype, *sizes[2:]), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_causal_and_softcap(dtype: torch.dtype) -> None:
    text = attention_text(dtype, 32, 32, mask_mod=CAUSAL, score_mod=SOFTCAP)
    check(
        text,
        inputs(dtype, 200, 190, 32, 32),
        mask_mod=lambda b, h, q, k: q >= k,
        score_mod=lambda s, b, h, q, k: torch.tanh(s / 2) * 2,
    )


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "soft cap": lambda s, b, h, q, k: torch.tanh(s / 2) * 2,
    "three": lambda s, b, h, q, k: torch.sin(torch.tanh(s) * 3),
    "softplus": lambda s, b, h, q, k: torch.log1p(torch.exp(s)),
    "columns": lambda s, b, h, q, k: torch.tanh(s) * torch.log(q + 2.0),
    "positions": lambda s, b, h, q, k: torch.tanh(s) - torch.log((q - k).abs() + 1.0),
    "wide": lambda s, b, h, q, k: torch.sin(torch.tanh(s.double())).float(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_functions_in_a_row(name: str, dtype: torch.dtype) -> None:
    """Maps that `tile-split-functions` splits, and some that it does not."""
    mods: Any = {"score_mod": FUNCTIONS[name], "mask_mod": causal_mask}
    tensors: Any = [t.requires_grad_() for t in inputs(dtype, 70, 101, 40, 40)]
    wide: Any = [t.detach().double().requires_grad_() for t in tensors]
    out: Any = flexc.flex_attention(*tensors, enable_gqa=True, **mods)
    want = attention(*wide, enable_gqa=True, **mods).out
    weight = torch.randn_like(want)
    found = torch.autograd.grad(out, tensors, weight.to(dtype))
    wanted = torch.autograd.grad(want, wide, weight)
    for a, b in zip((out, *found), (want, *wanted), strict=True):
        error = (a.double() - b).norm() / b.norm()
        assert error < TOLERANCE[dtype]


def test_captured_vector() -> None:
    slopes = torch.rand(4)
    text = attention_text(
        torch.float32, 32, 32, score_mod=ALIBI, captures=[("slopes", "tensor<?xf32>")]
    )
    check(
        text,
        inputs(torch.float32, 100, 150, 32, 32),
        (slopes,),
        score_mod=lambda s, b, h, q, k: s + slopes[h] * (k - q),
    )


def test_captured_table_is_zero_out_of_range() -> None:
    table = torch.randn(4, 50, dtype=torch.bfloat16)
    text = attention_text(
        torch.float32,
        32,
        32,
        score_mod=RELATIVE,
        captures=[("table", "tensor<?x?xbf16>")],
    )

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        inside = (q - k >= 0) & (q - k < 50)
        return s + torch.where(inside, table[h, (q - k).clamp(0, 49)], 0.0)

    tensors = inputs(torch.float32, 100, 150, 32, 32)
    check(text, tensors, (table,), score_mod=score_mod)


def test_captured_documents() -> None:
    ids = torch.arange(150, dtype=torch.int32) // 37
    text = attention_text(
        torch.float32, 32, 32, mask_mod=DOCUMENTS, captures=[("ids", "tensor<?xi32>")]
    )
    check(
        text,
        inputs(torch.float32, 150, 150, 32, 32),
        (ids,),
        mask_mod=lambda b, h, q, k: ids[q] == ids[k],
    )


def test_rows_with_nothing_to_attend_to() -> None:
    query, key, value = inputs(torch.float32, 70, 70, 16, 16)
    spec = lower(attention_text(torch.float32, 16, 16, mask_mod=NOTHING))
    out, lse = run_attention(spec, query, key, value, SCALE)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_any_strides() -> None:
    query, key, value = (
        t.transpose(1, 2).contiguous().transpose(1, 2)
        for t in inputs(torch.float32, 90, 110, 32, 32)
    )
    check(attention_text(torch.float32, 32, 32), (query, key, value))


def test_nan_and_infinities_spread_as_in_torch() -> None:
    query, key, value = inputs(torch.float32, 70, 140, 16, 16)
    query[0, 0, 3, 2], value[1, 0, 5, 7] = torch.nan, torch.inf
    spec = lower(attention_text(torch.float32, 16, 16))
    out, _ = run_attention(spec, query, key, value, SCALE)
    want = attention(query, key, value, scale=SCALE, enable_gqa=True).out
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.fixture
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def window(b: int, h: int, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (q_idx - kv_idx).abs() < 70


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("mask", "rows"),
    in_turn(
        [None, causal_mask, window],
        [
            (64, torch.bfloat16),
            (128, torch.float32),
            (128, torch.bfloat16),
            (40, torch.float32),
        ],
    ),
)
def test_copies_of_far_rows_change_no_bit(
    mask: Callable[..., Any] | None, rows: tuple[int, torch.dtype]
) -> None:
    """Enough programs of a head run on one thread that it reads its copies of rows."""
    head_dim, dtype = rows
    projected = torch.randn(2, 600, 8, head_dim, dtype=dtype)
    views = projected.transpose(1, 2).split([4, 2, 2], 1)
    near = [x.contiguous() for x in views]
    if head_dim == 128:  # Rows of 512 bytes are far from each other too.
        near = [torch.cat([x, x[..., :16]], 3)[..., :128] for x in near]
    options: Any = {"mask_mod": mask, "enable_gqa": True, "backend": "cpp"}
    attend = partial(flexc.flex_attention, **options)
    d_out = torch.randn(2, 4, 600, head_dim, dtype=dtype)
    found: list[tuple[Tensor, ...]] = []
    for given in (views, near):
        qkv = [x.detach().requires_grad_() for x in given]
        out = attend(*qkv)
        assert isinstance(out, Tensor)
        found.append((out, *torch.autograd.grad(out, qkv, d_out)))
    for far, other in zip(*found, strict=True):
        assert torch.equal(far, other)
