"""Loops that carry tiles in buffers, run in C++ and by the interpreter."""

from __future__ import annotations

import pytest
import torch

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.cpp_loader import load_cpp
from flexc.runtime.kernels.kernel import Kernel, launch
from tests.codegen.cpp_kernels import PREPARE, parse, run_passes

T = "!tile.tile<4x8xf32>"
R = "!tile.tile<8x4xf32>"
S = "!tile.tile<4x4xf32>"
DATA, OUT = "tensor<1x1x4x8xf32>", "memref<1x1x4x8xf32>"


def load(name: str, source: str, type_: str = T) -> str:
    strides, extents = (
        ("%s8, %s1", "%c4, %c8") if type_ == T else ("%s1, %s8", "%c8, %c4")
    )
    return (
        f"%{name} = tile.load_strided %{source}[%s0] strides [{strides}] "
        f"extents [{extents}] : {DATA} -> {type_}\n"
    )


def store(value: str, target: str) -> str:
    return (
        f"tile.store_strided %{value}, %{target}[%s0] strides [%s8, %s1] "
        f"extents [%c4, %c8] : {T}, {OUT}\n"
    )


def add(name: str, x: str, y: str, type_: str = T) -> str:
    return f"""%{name} = tile.map(%a : f32 = %{x} [0, 1] : {type_},
        %b : f32 = %{y} [0, 1] : {type_}) {{
      %r = arith.addf %a, %b : f32
      flex.yield %r : f32
    }} -> {type_}
    """


def kernel(body: str) -> str:
    return f"""
tile.kernel @attention(
    %x : {DATA} #tile.param<argument 0>, %y : {DATA} #tile.param<argument 1>,
    %z : {DATA} #tile.param<argument 2>, %out : {OUT} #tile.param<argument 3>,
    %out2 : {OUT} #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c3 = arith.constant 3 : i32
  %c4 = arith.constant 4 : i32
  %c8 = arith.constant 8 : i32
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %s8 = arith.constant 8 : i64
  %true = arith.constant true
  {load("p", "x")}{load("q", "y")}{body}
  tile.return
}}
"""


def loop(results: str, carried: str, types: str, body: str, count: str = "%c3") -> str:
    return f"""{results} = scf.for %i{len(body)} = %c0 to {count} step %c1
      iter_args({carried}) -> ({types}) : i32 {{
    {body}
  }}
  """


CASES = {
    "swap": loop(
        "%u, %w",
        "%m = %p, %n = %q",
        f"{T}, {T}",
        f"scf.yield %n, %m : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "rotate-and-add": loop(
        "%u, %w",
        "%m = %p, %n = %q",
        f"{T}, {T}",
        add("t", "m", "n") + f"scf.yield %n, %t : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "initial-value-used-later": loop(
        "%u", "%m = %p", T, add("t", "m", "q") + f"scf.yield %t : {T}"
    )
    + store("u", "out")
    + store("p", "out2"),
    "initial-value-used-inside": loop(
        "%u", "%m = %p", T, add("t", "m", "p") + f"scf.yield %t : {T}"
    )
    + store("u", "out")
    + store("q", "out2"),
    "one-initial-value-twice": loop(
        "%u, %w",
        "%m = %p, %n = %p",
        f"{T}, {T}",
        add("t", "m", "q") + add("r", "n", "t") + f"scf.yield %t, %r : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "argument-used-after-its-successor": loop(
        "%u, %w",
        "%m = %p, %n = %q",
        f"{T}, {T}",
        add("t", "m", "n") + add("r", "m", "t") + f"scf.yield %t, %r : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "value-from-outside": loop(
        "%u, %w",
        "%m = %p, %n = %q",
        f"{T}, {T}",
        add("t", "m", "n") + f"scf.yield %t, %q : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "yielded-twice": loop(
        "%u, %w",
        "%m = %p, %n = %q",
        f"{T}, {T}",
        add("t", "m", "n") + f"scf.yield %t, %t : {T}, {T}",
    )
    + store("u", "out")
    + store("w", "out2"),
    "no-iteration": loop(
        "%u", "%m = %p", T, add("t", "m", "q") + f"scf.yield %t : {T}", "%c0"
    )
    + store("u", "out")
    + store("q", "out2"),
    "nested": loop(
        "%u",
        "%m = %p",
        T,
        loop("%v", "%n = %m", T, add("t", "n", "q") + f"scf.yield %t : {T}")
        + add("r", "v", "m")
        + f"scf.yield %r : {T}",
    )
    + store("u", "out")
    + store("q", "out2"),
    "accumulator-used-later": load("zt", "z", R)
    + f"""%s = tile.register_product %p, %zt by <6 x 2> : {T}, {R} -> {S}
    %d = tile.register_product %s, %q onto %p by <6 x 2>
        : {S}, {T} onto {T} -> {T}
    """
    + store("d", "out")
    + store("p", "out2"),
    "accumulator-is-an-operand": load("zt", "z", R)
    + f"""%s = tile.register_product %p, %zt by <6 x 2> : {T}, {R} -> {S}
    %d = tile.register_product %s, %q onto %q by <6 x 2>
        : {S}, {T} onto {T} -> {T}
    """
    + store("d", "out")
    + store("d", "out2"),
    "branches": f"""%u = scf.if %true -> ({T}) {{
      scf.yield %p : {T}
    }} else {{
      scf.yield %q : {T}
    }}
    """
    + add("t", "u", "p")
    + store("t", "out")
    + store("u", "out2"),
    "scalars-carried": f"""%u, %w = scf.for %i = %c0 to %c3 step %c1
        iter_args(%m = %c1, %n = %c4) -> (i32, i32) : i32 {{
      %t = arith.addi %m, %n : i32
      scf.yield %n, %t : i32, i32
    }}
    %t = tile.map(%a : f32 = %p [0, 1] : {T}, %b : i32 = %u [] : i32,
                  %c : i32 = %w [] : i32) {{
      %d = arith.subi %b, %c : i32
      %e = arith.sitofp %d : i32 to f32
      %f = arith.mulf %a, %e : f32
      flex.yield %f : f32
    }} -> {T}
    """
    + store("t", "out")
    + store("q", "out2"),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_the_interpreter(name: str) -> None:
    text = kernel(CASES[name])
    tensors = [torch.randn(1, 1, 4, 8) for _ in range(3)]
    want = [torch.empty(1, 1, 4, 8) for _ in range(2)]
    got = [torch.empty(1, 1, 4, 8) for _ in range(2)]
    ctx, module = parse(text)
    run_module(module, [*tensors, *want])
    spec = run_passes(ctx, module, PREPARE)
    Kernel(spec)(tensors[0], [*tensors, *got])
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


ZEROS_BELOW = KernelSpec(
    target="cpp",
    entry="zeros_below",
    params=(
        ParamSpec("table", "i8", "input", "argument", 0),
        ParamSpec("out", "i32", "output", "argument", 1),
        ParamSpec("steps", "i32", "scalar", "dim", 0),
    ),
    grid="affine_map<(b, h, q_len) -> (1, 1, 1)>",
    source="""#include "flexc_support.h"
using namespace flexc;
FLEXC_KERNEL void zeros_below(const int8_t* table, int32_t* out, const int32_t steps,
    int64_t grid_0, int64_t grid_1, int64_t grid_2, int32_t threads) {
    Buffer<int32_t, 32> offset;
    Buffer<int32_t, 128> column;
    Buffer<int32_t, 32, 128> other, zero;
    for (int32_t step = 0; step < steps; ++step) {
        iota(offset, step);
        iota(column, step);
        for (int row = 0; row < 32; ++row) {
            const int32_t start = offset[row];
            for (int col = 0; col < 128; ++col)
                zero[row][col] = read(table, start + column[col]) == 0;
        }
        reduce_columns<Max>(column, other);
        reduce_columns<Max>(column, zero);
        for (int col = 0; col < 128; ++col) out[col] += column[col];
    }
}
""",
)


def test_a_loop_over_three_buffers_is_seen_to_write_them() -> None:
    """GCC 12 read `zero` before the loop wrote it if addresses came from integers."""
    steps = 4
    table = (torch.arange(2 * steps + 32 + 128) // 40 % 2).to(torch.int8)
    out = torch.zeros(128, dtype=torch.int32)
    launch(load_cpp(ZEROS_BELOW), (1, 1, 1), [table, out, steps])
    i, j = torch.arange(32)[:, None], torch.arange(128)[None, :]
    s = torch.arange(steps)[:, None, None]
    want = (table[2 * s + i + j] == 0).any(1).sum(0, dtype=torch.int32)
    assert torch.equal(out, want)
