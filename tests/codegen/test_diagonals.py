"""Sums along diagonals, added up over blocks whose windows of memory overlap.

In C++ and by Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.passes import ModulePass

from flexc.codegen.cpp.target import CppSourceTarget
from flexc.passes import pipelines
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import parse

N = 16
ELEMENTS = {torch.float32: "f32", torch.float64: "f64"}


def kernel(element: str) -> str:
    """Adds each block of rows' diagonals to a vector of its own."""
    data, out = f"tensor<?x?x?x?x{element}>", f"memref<?x?x?x?x{element}>"
    return f"""
tile.kernel @attention(
    %x : {data} #tile.param<argument 0>, %out : {out} #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv {N}, h, b)> {{
  %m = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %n = arith.constant {N} : i32
  %row = arith.muli %m, %n : i32
  %columns = tile.dim %x, 3 : {data} -> i32
  %count = arith.divsi %columns, %n : i32
  %last = arith.subi %columns, %n : i32
  scf.for %i = %c0 to %count step %c1 : i32 {{
    %column = arith.muli %i, %n : i32
    %w = tile.load %x[%b, %h, %row, %column] : {data}, i32, i32, i32, i32
        -> !tile.tile<{N}x{N}x{element}>
    %d = tile.diagonals %w : !tile.tile<{N}x{N}x{element}>
        -> !tile.tile<{2 * N}x{element}>
    %from = arith.subi %row, %column : i32
    %at = arith.addi %from, %last : i32
    tile.add_to %d, %out[%b, %h, %m, %at] : !tile.tile<{2 * N}x{element}>, {out}
  }}
  tile.return
}}
"""


def summed(x: Tensor) -> Tensor:
    """Entry row - column + columns of each block of rows, by definition."""
    batch, heads, rows, columns = x.shape
    sums = x.new_zeros(batch, heads, rows // N, rows + columns)
    for row in range(rows):
        for column in range(columns):
            sums[:, :, row // N, row - column + columns] += x[:, :, row, column]
    return sums


def matrix(dtype: torch.dtype) -> Tensor:
    """Small whole numbers, whose sums are exact."""
    return torch.randint(-9, 10, (2, 3, 2 * N, 3 * N)).to(dtype)


def lowered(dtype: torch.dtype, passes: Sequence[ModulePass]):
    ctx, module = parse(kernel(ELEMENTS[dtype]))
    for each in passes:
        each.apply(ctx, module)
        module.verify()
    return module


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("target", ["none", "cpp", "triton"])
def test_the_interpreter_sums_at_every_level(target: str, dtype: torch.dtype) -> None:
    passes = {"none": (), "cpp": pipelines.to_cpp(), "triton": pipelines.to_triton()}
    x = matrix(dtype)
    out = torch.zeros_like(summed(x))
    run_module(lowered(dtype, passes[target]), [x, out])
    assert torch.equal(out, summed(x))


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_cpp_sums(dtype: torch.dtype) -> None:
    (spec,) = CppSourceTarget().print_kernels(lowered(dtype, pipelines.to_cpp()))
    x = matrix(dtype)
    out = torch.zeros_like(summed(x))
    Kernel(spec)(x, [x, out])
    assert torch.equal(out, summed(x))


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_triton_sums(dtype: torch.dtype) -> None:
    from flexc.codegen.triton.target import TritonSourceTarget

    (spec,) = TritonSourceTarget().print_kernels(lowered(dtype, pipelines.to_triton()))
    x = matrix(dtype)
    out = torch.zeros_like(summed(x))
    Kernel(spec)(x, [x, out])
    assert torch.equal(out, summed(x))
