"""Products with few rows in C++, for all vectors, and calls whose rows are folded."""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from flexc.runtime.kernels.cpp_compiler import find_compiler
from tests.support.pairwise import in_turn
from tests.support.reference import attention

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}
KV_HEADS = 2


def inputs(
    group: int, q_len: int, kv_len: int, dims: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(2, KV_HEADS * group, q_len, dims[0]).to(dtype)
    key = torch.randn(2, KV_HEADS, kv_len, dims[0]).to(dtype)
    return query, key, torch.randn(2, KV_HEADS, kv_len, dims[1]).to(dtype)


def check(tensors: tuple[Tensor, Tensor, Tensor], **mods: Any) -> None:
    query, key, value = tensors
    reference_mods = {k: mods[k] for k in ("score_mod", "mask_mod") if k in mods}
    if "block_mask" in mods:
        reference_mods["mask_mod"] = mods["block_mask"].mask_mod
    result: Any = flexc.flex_attention(
        query, key, value, **mods, enable_gqa=True, return_lse=True, backend="cpp"
    )
    out, lse = result
    want = attention(query, key, value, **reference_mods, enable_gqa=True)
    tolerance = TOLERANCE[query.dtype]
    torch.testing.assert_close(out.double(), want.out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), want.lse, atol=tolerance, rtol=tolerance)
    assert out.stride(3) == 1


@pytest.mark.parametrize(
    ("group", "dtype"), in_turn([1, 4, 7, 16], list(TOLERANCE)), ids=str
)
def test_decoding(group: int, dtype: torch.dtype) -> None:
    check(inputs(group, 1, 300, (64, 64), dtype))


@pytest.mark.parametrize("q_len", [2, 3, 16])
@pytest.mark.parametrize("group", [1, 4])
def test_some_queries(group: int, q_len: int) -> None:
    slopes = torch.rand(KV_HEADS * group)
    offset = torch.tensor([100, 250])
    check(
        inputs(group, q_len, 257, (24, 40), torch.float32),
        score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i),
        mask_mod=lambda b, h, i, j: i + offset[b] >= j,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("q_len", "dim"), [(17, 256), (33, 128), (63, 256)])
def test_fewer_queries_than_a_program_of_wide_heads(
    q_len: int, dim: int, dtype: torch.dtype
) -> None:
    check(
        inputs(3, q_len, 101, (dim, dim), dtype),
        mask_mod=lambda b, h, i, j: i + 50 >= j,
    )


@pytest.mark.parametrize("kv_len", [1, 7, 255, 256, 513])
def test_keys_beyond_the_last_block(kv_len: int) -> None:
    check(inputs(4, 1, kv_len, (20, 130), torch.bfloat16))


@pytest.mark.parametrize("vector_bytes", ["16", "32"])
def test_narrow_vectors(vector_bytes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"16": "portable", "32": "avx2"}[vector_bytes]
    monkeypatch.setattr(
        "flexc.runtime.attention.call.machine_for", lambda backend: name
    )
    for group, dtype in ((1, torch.float32), (3, torch.float16), (7, torch.float64)):
        check(inputs(group, 1, 131, (72, 40), dtype))


@pytest.mark.parametrize("q_len", [1, 3])
def test_any_strides(q_len: int) -> None:
    query, key, value = inputs(4, q_len, 100, (32, 32), torch.float32)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    apart = key.mT.contiguous().mT
    check((query, apart, value.flip(2)))
    check((query, key[:, :, ::2], value[:, :, 1::2]))


def window_at(position: int) -> Any:
    return lambda b, h, i, j: (i + position >= j) & (i + position - j < 33)


def test_a_window_at_a_captured_position() -> None:
    for position in (0, 40, 299):
        check(
            inputs(4, 1, 300, (64, 64), torch.float32),
            mask_mod=window_at(position),
        )


def test_a_mask_that_differs_by_head_is_not_folded() -> None:
    check(
        inputs(4, 2, 300, (64, 64), torch.float32),
        mask_mod=lambda b, h, i, j: j >= 10 * h + i,
    )


@pytest.mark.parametrize("heads", [None, 8])
@pytest.mark.parametrize("q_len", [1, 5])
def test_tables(q_len: int, heads: int | None) -> None:
    keep = torch.rand(300) < 0.1
    keep[:130] = False
    keep[299] = True
    mask = create_block_mask(
        lambda b, h, i, j: keep[j], None, heads, q_len, 300, "cpu", BLOCK_SIZE=64
    )
    check(inputs(4, q_len, 300, (64, 64), torch.float32), block_mask=mask)


def test_gradients_of_few_rows() -> None:
    tensors = inputs(4, 2, 50, (16, 16), torch.float32)
    query, key, value = (t.requires_grad_() for t in tensors)
    out: Any = flexc.flex_attention(query, key, value, enable_gqa=True, backend="cpp")
    wanted = attention(query, key, value, enable_gqa=True).out
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), (query, key, value))
    want = torch.autograd.grad((wanted * weights).sum(), (query, key, value))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("q_len", [1, 2])
def test_calls_that_are_remembered(q_len: int, interleaved: bool) -> None:
    """Rows that are views are folded again, others are copied again."""
    for _ in range(3):
        query, key, value = inputs(4, q_len, 100, (16, 16), torch.float32)
        if interleaved:
            query = query.transpose(1, 2).contiguous().transpose(1, 2)
        check((query, key, value))


REDUCTIONS = """
#define FLEXC_VECTOR_BYTES {width}
#include "flexc_support.h"
using namespace flexc;
FLEXC_KERNEL void reduce({name}* largest, {name}* sum, {name}* in, int count) {{
    const Tile<{name}, 3, 37> tile{{in}};
    reduce_rows<Max>(Tile<{name}, 3>{{largest}}, tile, count);
    reduce_rows<Sum>(Tile<{name}, 3>{{sum}}, tile, count);
}}"""


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float", torch.float32), ("double", torch.float64), ("int64_t", torch.int64)],
)
def test_the_first_columns_are_reduced(
    name: str, dtype: torch.dtype, width: int, tmp_path: Path
) -> None:
    source = tmp_path / "reduce.cpp"
    source.write_text(REDUCTIONS.format(name=name, width=width))
    find_compiler().build(source, output=tmp_path / "reduce.so")
    reduce = ctypes.CDLL(str(tmp_path / "reduce.so")).reduce
    pitch = -(-37 // (width // 4)) * (width // 4)
    tile = torch.empty(3, pitch, dtype=dtype)
    for count in (1, 5, 8, 16, 33, 37):
        tile.copy_(torch.randint(-9, -1, tile.shape))
        tile[:, count:] = 99
        found = torch.zeros(2, 3, dtype=dtype)
        addresses = (found[0].data_ptr(), found[1].data_ptr(), tile.data_ptr())
        reduce(*map(ctypes.c_void_p, addresses), count)
        some = tile[:, :count]
        assert torch.equal(found, torch.stack([some.amax(1), some.sum(1)]))


def test_explain_says_whose_rows_a_program_has() -> None:
    query, key, value = inputs(4, 1, 300, (64, 64), torch.float32)
    call = partial(flexc.flex_attention, enable_gqa=True, backend="cpp")
    (found,) = flexc.explain(call, query, key, value)
    assert found.tile[0] == 4
    assert "4 heads" in found.fact("few_rows").text
    assert "4 heads" in str(found)


def test_rows_that_are_asked_for_stay() -> None:
    tensors = inputs(4, 1, 300, (64, 64), torch.float32)
    check(tensors, kernel_options={"BLOCK_M": 16})
