"""Programs whose rows are put in lanes: by the interpreter before, and in C++ after."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexc.passes import pipelines
from flexc.passes.cpu.tile_put_rows_in_lanes import TilePutRowsInLanesPass
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import parse, run_passes

M, N, D = 16, 24, 8
IN, OUT = f"tensor<1x1x?x{D}xf32>", f"memref<1x1x?x{D}xf32>"


def type_of(*shape: int) -> str:
    return f"!tile.tile<{'x'.join(map(str, shape))}xf32>"


ROWS, COLUMNS, PAIRS = type_of(M, D), type_of(N, D), type_of(M, N)
ROWS_T, COLUMNS_T, PAIRS_T = type_of(D, M), type_of(D, N), type_of(N, M)


def dot(name: str, a: str, b: str, acc: str, types: tuple[str, str, str]) -> str:
    x, y, z = types
    return f"%{name} = tile.dot %{a}, %{b}, %{acc} : {x}, {y}, {z} -> {z}\n"


def full(name: str, type_: str) -> str:
    return f"%{name} = tile.full %zero : f32 -> {type_}\n"


def turn(name: str, value: str, source: str, type_: str) -> str:
    return f"%{name} = tile.transpose %{value} : {source} -> {type_}\n"


def add(name: str, x: str, y: str, type_: str, other: str, span: str) -> str:
    return f"""%{name} = tile.map(%a : f32 = %{x} [0, 1] : {type_},
        %c : f32 = %{y} [{span}] : {other}) {{
      %r = arith.addf %a, %c : f32
      flex.yield %r : f32
    }} -> {type_}
    """


def store(value: str, type_: str) -> str:
    where = "%out[%c0, %c0, %c0, %c0] checked [0]"
    return f"tile.store %{value} : {type_}, {where} : {OUT}, i32, i32, i32, i32\n"


SCORES = (
    turn("k_t", "k", COLUMNS, COLUMNS_T)
    + full("zeros", PAIRS)
    + dot("s", "q", "k_t", "zeros", (ROWS, COLUMNS_T, PAIRS))
)


def summed(value: str, type_: str) -> str:
    """To be seen in what is stored: a reduction, spread over the rows."""
    return f"""%least = tile.reduce min %{value} along 0 : {type_}
    %most = tile.reduce max %{value} along 1 : {type_}
    %sum = tile.map(%a : f32 = %acc [0, 1] : {ROWS},
        %c : f32 = %most [0] : {type_of(M)}) {{
      %r = arith.addf %a, %c : f32
      flex.yield %r : f32
    }} -> {ROWS}
    """


CASES = {
    "weights": full("acc", ROWS)
    + SCORES
    + dot("o", "s", "k", "acc", (PAIRS, COLUMNS, ROWS))
    + store("o", ROWS),
    "sums-over-rows": full("acc", COLUMNS)
    + SCORES
    + turn("s_t", "s", PAIRS, PAIRS_T)
    + dot("o", "s_t", "q", "acc", (PAIRS_T, ROWS, COLUMNS))
    + dot("d", "s", "o", "q", (PAIRS, COLUMNS, ROWS))
    + store("o", COLUMNS)
    + f"tile.add_to %d, %out[%c0, %c0, %c0, %c0] : {ROWS}, {OUT}\n",
    "reductions": full("acc", ROWS) + SCORES + summed("s", PAIRS) + store("sum", ROWS),
    "exchanged-spans": full("acc", ROWS)
    + SCORES
    + turn("q_t", "q", ROWS, ROWS_T)
    + add("u", "q", "q_t", ROWS, ROWS_T, "1, 0")
    + add("t_t", "q_t", "u", ROWS_T, ROWS, "1, 0")
    + turn("t", "t_t", ROWS_T, ROWS)
    + dot("o", "s", "k", "t", (PAIRS, COLUMNS, ROWS))
    + store("o", ROWS),
    "carried-and-branches": full("acc", ROWS)
    + SCORES
    + f"""%u, %w = scf.for %i = %c0 to %c3 step %c1
      iter_args(%x = %acc, %y = %k) -> ({ROWS}, {COLUMNS}) : i32 {{
      %odd = arith.cmpi eq, %i, %c1 : i32
      %z = scf.if %odd -> ({ROWS}) {{
        {dot("o", "s", "y", "x", (PAIRS, COLUMNS, ROWS))}
        scf.yield %o : {ROWS}
      }} else {{
        scf.yield %q : {ROWS}
      }}
      {add("v", "y", "k", COLUMNS, COLUMNS, "0, 1")}
      scf.yield %z, %v : {ROWS}, {COLUMNS}
    }}
    """
    + dot("o2", "s", "w", "u", (PAIRS, COLUMNS, ROWS))
    + store("o2", ROWS),
    "counts": f"""%few = tile.load %key[%c0, %c0, %c0, %c0] count %c3
      : {IN}, i32, i32, i32, i32 -> {COLUMNS}
    """
    + SCORES
    + f"""%o = tile.dot %s, %few, %q count %c3
      : {PAIRS}, {COLUMNS}, {ROWS} -> {ROWS}
    """
    + store("o", ROWS),
}


def kernel(body: str) -> str:
    loads = "".join(
        f"%{name} = tile.load %{tensor}[%c0, %c0, %c0, %c0] checked [0] "
        f": {IN}, i32, i32, i32, i32 -> {type_}\n"
        for name, tensor, type_ in (("q", "query", ROWS), ("k", "key", COLUMNS))
    )
    return f"""
tile.kernel @attention(%query : {IN} #tile.param<argument 0>,
    %key : {IN} #tile.param<argument 1>, %out : {OUT} #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c3 = arith.constant 3 : i32
  %zero = arith.constant 0.0 : f32
  {loads}{body}
  tile.return
}}
"""


def made(*rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows[0])
    return [torch.randn(1, 1, n, D, generator=generator) for n in rows]


@pytest.mark.parametrize("name", CASES)
def test_same_as_before(name: str) -> None:
    ctx, module = parse(kernel(CASES[name]))
    query, key = made(M - 3, N - 5)
    # As many as are stored at most: what is added to is all there.
    want, turned, got = (torch.zeros(1, 1, N, D) for _ in range(3))
    run_module(module, [query, key, want])
    after = module.clone()
    TilePutRowsInLanesPass().apply(ctx, after)
    after.verify()
    assert "tile.transpose %q" in str(after)
    run_module(after, [query, key, turned])
    spec = run_passes(ctx, module, pipelines.to_cpp())
    Kernel(spec)(query, [query, key, got])
    torch.testing.assert_close(turned, want)
    torch.testing.assert_close(got, want)
