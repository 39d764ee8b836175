"""Packed products of bf16, run in C++ and by the interpreter, against torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.passes import ModulePass

import flexc
from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes import pipelines
from flexc.passes.cpu.products import TileRegisterProductsPass
from flexc.passes.cpu.tile_widen_floats import TilePackOperandsPass
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.cpp import MACHINES
from flexc.passes.targets.target import MachineName
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.cpp_compiler import find_compiler
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import (
    PREPARE,
    attention_text,
    parse,
    run_attention,
    run_passes,
)
from tests.support.corpus_masks import causal_mask
from tests.support.pairwise import pairwise

PACKED: list[MachineName] = [n for n, m in MACHINES.items() if m.packed is not None]
ROWS = 50
FORMS = [
    # The strides of lhs and rhs. A copy of another lhs is made, pairs of any rhs are.
    ("%a0, %one", "%one, %b1"),
    ("%one, %a1", "%b0, %one"),
    ("%a0, %a1", "%b0, %b1"),
]
INSTRUCTIONS = ["", "avx2"]
"""With the host's instructions, and without: they are computed in plain C++."""


def kernel(inner: int, columns: int, strides: tuple[str, str]) -> str:
    """A product of loaded operands, and one of a rounded rhs, of counted terms."""
    lhs, rhs = f"{ROWS}x{inner}xbf16", f"{inner}x{columns}xbf16"
    result, wide = f"{ROWS}x{columns}xf32", f"{inner}x{columns}xf32"
    types = f"!tile.tile<{lhs}>, !tile.tile<{rhs}>, !tile.tile<{result}>"
    out = f"!tile.tile<{result}>, memref<?xf32>"
    return f"""
tile.kernel @products(
    %a : tensor<?x?x?xbf16> #tile.param<argument 0>,
    %b : tensor<?xbf16> #tile.param<argument 1>,
    %c : tensor<?xf32> #tile.param<argument 2>,
    %rows : i32 #tile.param<argument 3>, %inner : i32 #tile.param<argument 4>,
    %a0 : i64 #tile.param<argument 5>, %a1 : i64 #tile.param<argument 6>,
    %b0 : i64 #tile.param<argument 7>, %b1 : i64 #tile.param<argument 8>,
    %out : memref<?xf32> #tile.param<argument 9>,
    %out2 : memref<?xf32> #tile.param<argument 10>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %one = arith.constant 1 : i64
  %none = arith.constant 0 : i64
  %pitch = arith.constant {columns} : i64
  %columns = arith.constant {columns} : i32
  %all_rows = arith.constant {ROWS} : i32
  %all_inner = arith.constant {inner} : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<{result}>
  %x = tile.load_strided %a[%none] strides [{strides[0]}]
      extents [%rows, %all_inner] counted 0 : tensor<?x?x?xbf16> -> !tile.tile<{lhs}>
  %y = tile.load_strided %b[%none] strides [{strides[1]}]
      extents [%all_inner, %columns] : tensor<?xbf16> -> !tile.tile<{rhs}>
  %p = tile.dot %x, %y, %zeros : {types} -> !tile.tile<{result}>
  %z = tile.load_strided %a[%none] strides [{strides[0]}]
      extents [%all_rows, %inner] counted 1 : tensor<?x?x?xbf16> -> !tile.tile<{lhs}>
  %w = tile.load_strided %c[%none] strides [%pitch, %one]
      extents [%inner, %columns] counted 0 : tensor<?xf32> -> !tile.tile<{wide}>
  %rounded = tile.map(%e : f32 = %w [0, 1] : !tile.tile<{wide}>) {{
    %r = arith.truncf %e : f32 to bf16
    flex.yield %r : bf16
  }} -> !tile.tile<{rhs}>
  %q = tile.dot %z, %rounded, %zeros count %inner : {types} -> !tile.tile<{result}>
  tile.store_strided %p, %out[%none] strides [%pitch, %one]
      extents [%rows, %columns] : {out}
  tile.store_strided %q, %out2[%none] strides [%pitch, %one]
      extents [%all_rows, %columns] : {out}
  tile.return
}}
"""


@pytest.mark.parametrize(
    ("machine", "machine_flags", "lengths", "dims"),
    pairwise(PACKED, INSTRUCTIONS, [(33, 131), (97, 64)], [(80, 48), (136, 160)]),
    ids=str,
)
def test_attention_of_pairs(
    machine: MachineName,
    lengths: tuple[int, int],
    dims: tuple[int, int],
    machine_flags: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if machine_flags:
        monkeypatch.setenv("FLEXC_MACHINE", machine_flags)
    mask = "%m = arith.cmpi sge, %qi, %ki : i32\nflex.yield %m : i1"
    text = attention_text(torch.bfloat16, *dims, mask_mod=mask)
    ctx, module = parse(text)
    convert = ConvertFlexToBlocksparsePass("cpp", machine=machine)
    passes = (
        *pipelines.to_blocksparse(convert),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp(machine),
    )
    spec = run_passes(ctx, module, passes)
    assert ("TileRegisters" in spec.source) == (machine == "amx")
    query = torch.randn(1, 2, lengths[0], dims[0]).bfloat16()
    key, value = (torch.randn(1, 2, lengths[1], n).bfloat16() for n in dims)
    out, lse = run_attention(spec, query, key, value, 0.1)
    seen = torch.ones(lengths, dtype=torch.bool).tril()
    scores = (query.double() @ key.double().mT * 0.1).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=0, atol=1e-5)
    right = scores.softmax(-1) @ value.double()
    assert (out.double() - right).norm() < 3e-3 * right.norm()


CAUSAL = "%m = arith.cmpi sge, %qi, %ki : i32\nflex.yield %m : i1"


def beside_maps(
    mask: str = "",
    dims: tuple[int, int] = (64, 32),
    tile: int | None = None,
    mod: str = "",
) -> KernelSpec:
    """A kernel of early weights, whose products lie beside maps if two fit a cache."""
    text = attention_text(torch.bfloat16, *dims, score_mod=mod, mask_mod=mask)
    ctx, module = parse(text)
    convert = ConvertFlexToBlocksparsePass("cpp", tile, tile, machine="amx")
    passes = (
        *pipelines.to_blocksparse(convert),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp("amx"),
    )
    spec = run_passes(ctx, module, passes)
    assert spec.source.count("tile_steps") == int(max(dims) < 128 or tile is not None)
    return spec


@pytest.mark.parametrize(
    ("mask", "dims", "tile"),
    [
        ("", (64, 32), None),
        ("", (72, 24), None),
        (CAUSAL, (40, 32), None),
        (CAUSAL, (128, 128), None),
        ("", (136, 128), 64),
    ],
    ids=["dense-64", "dense-72", "causal-40", "causal-128", "dense-136"],
)
def test_products_beside_maps(
    mask: str, dims: tuple[int, int], tile: int | None
) -> None:
    """Scores are level, or grow so that each block replaces the maxima."""
    spec = beside_maps(mask, dims, tile)
    for grows, *lengths in (
        *((grows, 300, 500) for grows in (0.0, 0.3, -0.3, 40.0)),
        *((0.0, *lengths) for lengths in ((33, 96), (140, 127), (1, 1), (5, 0))),
    ):
        q, k, v = (
            torch.randn(1, 2, length, dim).bfloat16()
            for length, dim in zip(
                (*lengths, lengths[1]), (dims[0], *dims), strict=True
            )
        )
        q[..., 0], k[..., 0] = 8, grows * torch.arange(lengths[1])
        out, lse = run_attention(spec, q, k, v, 0.125)
        scores = q.double() @ k.double().mT * 0.125
        if mask:
            seen = torch.ones(lengths, dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        exact = scores.logsumexp(-1)
        # A sum rounds once a term, by 2**-24 at most. Errors add up as random steps do,
        # in the order of the machine's products: 6 deviations are 4 * sqrt(terms).
        step = dims[0] ** 0.5 * 2**-24
        torch.testing.assert_close(lse.double(), exact, rtol=4 * step, atol=1e-5)
        right = (scores.softmax(-1) @ v.double()).nan_to_num()
        largest = exact.nan_to_num(neginf=0.0).abs().max()
        assert (out.double() - right).norm() <= (3e-3 + step * largest) * right.norm()


def growing(slope: float) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    text = f"""
    %f = arith.sitofp %ki : i32 to f32
    %c = arith.constant {slope:.6e} : f32
    %m = arith.mulf %f, %c : f32
    %y = arith.addf %s, %m : f32
    flex.yield %y : f32"""
    return text, lambda s, k: s + slope * k


def last_times(factor: float) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """Multiply the score of the last column of each block."""
    constant = "0x7f800000" if factor == torch.inf else f"{factor:.6e}"
    text = f"""
    %n = arith.constant 96 : i32
    %l = arith.constant 95 : i32
    %r = arith.remsi %ki, %n : i32
    %is = arith.cmpi eq, %r, %l : i32
    %c = arith.constant {constant} : f32
    %m = arith.mulf %s, %c : f32
    %y = arith.select %is, %m, %s : f32
    flex.yield %y : f32"""
    return text, lambda s, k: torch.where(k % 96 == 95, s * factor, s)


@pytest.mark.parametrize(
    ("text", "mod"),
    [
        *map(growing, (0.02, 0.3, 2.0, -2.0)),
        *map(last_times, (1e3, 1e30, torch.inf)),
    ],
    ids=["slow", "growing", "steep", "falling", "large", "huge", "infinite"],
)
def test_wrong_guesses_of_the_largest_score(
    text: str, mod: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """A guess is the mod of the first product at the last column."""
    spec = beside_maps(mod=text)
    assert "ahead" in spec.source
    for lengths in ((140, 700), (33, 96), (40, 97), (5, 1)):
        q = torch.randn(1, 2, lengths[0], 64).bfloat16()
        k, v = (torch.randn(1, 2, lengths[1], n).bfloat16() for n in (64, 32))
        out, lse = run_attention(spec, q, k, v, 0.125)
        columns = torch.arange(lengths[1])
        scores = mod(q.double() @ k.double().mT * 0.125, columns)
        terms = mod(q.double().abs() @ k.double().abs().mT * 0.125, columns)
        # A sum rounds once a term, by 2**-24 at most; most errors cancel.
        bound = 1e-5 + 64 * 2**-26 * terms.abs().amax(-1)
        exact = scores.logsumexp(-1)
        assert torch.equal(lse.isnan(), exact.isnan())
        assert ((lse.double() - exact).nan_to_num().abs() <= bound).all()
        right = scores.softmax(-1) @ v.double()
        assert torch.equal(out.isnan(), right.isnan())
        error = (out.double() - right).nan_to_num()
        assert error.norm() <= 3e-3 * right.nan_to_num().norm()


@pytest.mark.parametrize("head_dim", [64, 72])
def test_infinite_scores_beside_maps(head_dim: int) -> None:
    """A row with an infinite or undefined score is NaN, and -inf has no weight."""
    spec = beside_maps(dims=(head_dim, 32))
    q, k = (torch.randn(1, 1, length, head_dim).bfloat16() for length in (4, 300))
    v = torch.randn(1, 1, 300, 32).bfloat16()
    q[0, 0, :, 0] = torch.tensor([0.5, 1.0, -1.0, torch.nan])
    for at in (0, 5, 150, 299):
        k[..., 0] = 0
        k[0, 0, at, 0] = torch.inf
        out, _ = run_attention(spec, q, k, v, 0.125)
        assert out[0, 0, [0, 1, 3]].isnan().all()
        rest = torch.arange(300) != at
        scores = q[0, 0, 2].double() @ k[0, 0, rest].double().mT * 0.125
        right = scores.softmax(-1) @ v[0, 0, rest].double()
        assert (out[0, 0, 2].double() - right).norm() <= 5e-3 * right.norm()


def matrix(memory: Tensor, rows: int, columns: int, strides: tuple[int, int]) -> Tensor:
    return memory.as_strided((rows, columns), strides).double()


@pytest.mark.parametrize(
    ("machine", "machine_flags", "form", "sizes"),
    pairwise(
        PACKED,
        INSTRUCTIONS,
        range(len(FORMS)),
        [(32, 64), (20, 40), (48, 18), (64, 66)],
    ),
    ids=str,
)
def test_products_of_pairs(
    machine: MachineName,
    machine_flags: str,
    form: int,
    sizes: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns, inner = sizes
    if machine_flags:
        monkeypatch.setenv("FLEXC_MACHINE", machine_flags)
    ctx, module = parse(kernel(inner, columns, FORMS[form]))
    passes: list[ModulePass] = [
        TilePackOperandsPass(machine),
        TileRegisterProductsPass(machine),
    ]
    for each in passes:
        each.apply(ctx, module)
    module.verify()
    assert str(module).count("#tile.pairs> -> ") == 2
    interpreted = module.clone()
    run = Kernel(run_passes(ctx, module, PREPARE))
    a_strides = [(67, 1), (1, 67), (66, 3)][form]
    b_strides = [(1, 71), (71, 1), (3, 210)][form]
    a, b = (torch.randn(16_000).bfloat16() for _ in range(2))
    if form == 0:  # Nothing after a row's terms is used.
        a.as_strided((ROWS, 67 - inner), (67, 1), inner).fill_(torch.nan)
    c = torch.randn(inner * columns)
    for rows, count in ((ROWS, inner), (17, 7), (1, 1), (33, inner - 1), (16, 0)):
        # What is not counted is not used.
        given = torch.where(torch.arange(len(c)) < count * columns, c, torch.nan)
        lhs = matrix(a, ROWS, inner, a_strides)
        first = lhs[:rows] @ matrix(b, inner, columns, b_strides)
        second = c.view(inner, columns)[:count].bfloat16().double()
        for text in (interpreted, None):
            outs = [torch.full((ROWS * columns,), torch.nan) for _ in range(2)]
            strides = [*a_strides, *b_strides]
            args = [a[None, None], b, given, rows, count, *strides, *outs]
            run_module(text, args) if text is not None else run(
                a[None, None, None], args
            )
            got, other = (out.view(ROWS, columns).double() for out in outs)
            torch.testing.assert_close(got[:rows], first, rtol=1e-5, atol=1e-4)
            assert got[rows:].isnan().all()
            right = lhs[:, :count] @ second
            torch.testing.assert_close(other, right, rtol=1e-5, atol=1e-4)


KEPT = """
#include "flexc_support.h"
using namespace flexc;
FLEXC_KERNEL void kept(
    const bfloat16* in, int64_t stride, const int32_t* from, const int32_t* count,
    int n, bfloat16* out) {
    Kept<bfloat16, 16, 64> tile;
    for (int i = 0; i < n; ++i) {
        load(tile, in + from[i], int64_t(1), stride, 16, count[i]);
        for (int row = 0; row < 16; ++row)
            for (int block = 0; block < 2 && block * 32 < count[i]; ++block)
                __builtin_memcpy(
                    out + (i * 16 + row) * 64 + block * 32,
                    tile.blocks[block][row], 64);
    }
}
"""


@pytest.mark.parametrize("stride", [24, -24, 0])
def test_kept_blocks(tmp_path: Path, stride: int) -> None:
    """More blocks than there is room for, in order and at random, with counts."""
    (tmp_path / "kept.cpp").write_text(KEPT)
    library = tmp_path / "kept.so"
    find_compiler().build(tmp_path / "kept.cpp", output=library)
    memory = torch.randn(3000 + 2 * 63, 24).bfloat16()
    first = torch.cat(
        [torch.arange(3000), torch.arange(500), torch.randint(3000, (2000,))]
    )
    first += 63
    count = torch.where(
        torch.rand(len(first)) < 0.5, 64, torch.randint(65, first.shape)
    )
    out = torch.zeros(len(first), 16, 64).bfloat16()
    starts, counts = (first * 24).int(), count.int()
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (memory, starts, counts, out)]
    ctypes.CDLL(str(library)).kept(
        pointers[0], ctypes.c_int64(stride), *pointers[1:3], len(first), pointers[3]
    )
    rows = memory[first[:, None] + torch.arange(64) * (stride // 24), :16].mT
    rows = rows.where(torch.arange(64) < count[:, None, None], 0)
    assert torch.equal(out, rows)


def unfused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention in products of the inputs' dtype."""
    scores = query @ key.mT * query.size(3) ** -0.5
    seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("head_dim", [48, 64, 128])
@pytest.mark.parametrize("length", [33, 130])
def test_gradients_of_bf16_are_as_exact_as_unfused_ones(
    head_dim: int, length: int
) -> None:
    inputs = [torch.randn(1, 3, length, head_dim).bfloat16() for _ in range(4)]
    *qkv, d_out = inputs

    def gradients(
        attend: Callable[..., Any], dtype: torch.dtype = torch.bfloat16
    ) -> tuple[Tensor, ...]:
        leaves = [t.to(dtype).requires_grad_() for t in qkv]
        return torch.autograd.grad(attend(*leaves), leaves, d_out.to(dtype))

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flexc.flex_attention(query, key, value, mask_mod=causal_mask)

    found, again = gradients(fused), gradients(fused)
    right, rounded = gradients(unfused, torch.float64), gradients(unfused)
    for own, same, exact, other in zip(found, again, right, rounded, strict=True):
        assert torch.equal(own, same)
        assert (own - exact).norm() <= (other - exact).norm()
