"""Sums over pairs in C++, made part by part: as many programs as a part has rows."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.interpreters import run_module
from flexc.runtime.interpreters.host_ops import diagonal_shape
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import parse, run_passes

M = "tensor<?x?x?x8xf32>"
SUMS = "tensor<?x?x?x?xf32>"
INDICES = "%b : i32, %h : i32, %qi : i32, %ki : i32"
CAUSAL = "%c = arith.cmpi sge, %qi, %ki : i32"


def text(kind: str) -> str:
    """What pairs with a lower key are worth, plus where they are."""
    return f"""
func.func @attention_backward(%q : {M}, %k : {M}, %b0 : i32, %h0 : i32, %r0 : i32,
                              %scale : f32) -> {SUMS} {{
  %sums = flex.pair_sums rows(%q : {M}) columns(%k : {M})
      tile_origin(%b0, %h0, %r0 : i32, i32, i32) scale(%scale : f32) -> {SUMS}
      {{products = [array<i32: 0, 0>], sums = [#flex.sum<{kind} [[0]]>]}}
      pairs(%qk : f32, %s : f32, {INDICES}) {{
    %place = arith.addi %h, %qi : i32
    %float = arith.sitofp %place : i32 to f32
    %w = arith.addf %qk, %float : f32
    flex.yield %w : f32
  }} mask_mod({INDICES}) {{
    {CAUSAL}
    flex.yield %c : i1
  }}
  func.return %sums : {SUMS}
}}
"""


def kernel_of(kind: str) -> Kernel:
    ctx, module = parse(text(kind))
    passes = (
        *pipelines.to_blocksparse(ConvertFlexToBlocksparsePass("cpp", 16, 16)),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp(),
    )
    return Kernel(run_passes(ctx, module, passes))


def whole_numbers(*shape: int) -> Tensor:
    """Whose products and sums are exact."""
    return torch.randint(-3, 4, shape).float()


def expected(kind: str, *args: object) -> Tensor:
    (sums,) = run_module(parse(text(kind))[1], args)
    return sums


PARTS = [
    (range(2), range(12), range(70)),
    *product(
        (range(1), range(1, 2)),
        (range(9), range(9, 12)),
        (range(32), range(32, 64), range(64, 70)),
    ),
]


@pytest.fixture(scope="module")
def matrices() -> tuple[Tensor, Tensor]:
    """More heads than are started together, and a ragged last block."""
    return whole_numbers(2, 12, 70, 8), whole_numbers(2, 4, 50, 8)


def test_pairs(matrices: tuple[Tensor, Tensor]) -> None:
    kernel, (q, k) = kernel_of("pairs"), matrices
    whole = expected("pairs", q, k, 0, 0, 0, 0.5)
    for b, h, rows in PARTS:
        want = whole[b.start : b.stop, h.start : h.stop, rows.start : rows.stop]
        got = torch.zeros(want.shape)
        counts = len(b), len(h), len(rows)
        kernel.run(*counts, [q, k, b.start, h.start, rows.start, 0.5, got])
        assert torch.equal(got, want)


def test_diagonals(matrices: tuple[Tensor, Tensor]) -> None:
    kernel, (q, k) = kernel_of("diagonal"), matrices
    batch, heads, q_len, _ = q.shape
    sizes = batch, heads, q_len, k.shape[2]
    total = torch.zeros(diagonal_shape(1, sizes))[:, :, 0]
    for b, h, rows in PARTS[1:]:
        counts = len(b), len(h), len(rows)
        blocks = kernel.grid(*counts)[0]
        got = torch.zeros(*counts[:2], blocks, total.shape[-1])
        kernel.run(*counts, [q, k, b.start, h.start, rows.start, 0.5, got])
        total[b.start : b.stop, h.start : h.stop] += got.sum(2)
    assert torch.equal(total, expected("diagonal", q, k, 0, 0, 0, 0.5)[:, :, 0])
