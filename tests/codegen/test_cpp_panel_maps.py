"""Maps of panels in C++ and by the interpreter: counts, outcomes, reads of tables."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flexc.codegen.cpp.map_printer import MOST_UNROLLED
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.cpp_compiler import find_compiler
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import PREPARE, parse, run_passes
from tests.support.pairwise import pairwise

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32}
ROWS = 7


def kernel_text(
    type_: str, columns: int, body: str, outcomes: Sequence[str], vector_bytes: int
) -> str:
    """A kernel of one map over %x and %r of rows, %m and %c of columns, and a table."""
    data, cols = f"1x1x{ROWS}x{columns}x{type_}", f"!tile.tile<{columns}x{type_}>"
    full, outs, types = f"!tile.tile<{ROWS}x{columns}x{type_}>", "", list[str]()
    stores = ""
    for i, outcome in enumerate(outcomes):
        kept = outcome == "tile"
        types.append(full if kept else cols)
        shape = data if kept else f"1x1x1x{columns}x{type_}"
        outs += f", %out{i} : memref<{shape}> #tile.param<argument {i + 4}>"
        strides, extents = ("%pitch, %s1", "%n, %w") if kept else ("%s1", "%w")
        stores += (
            f"tile.store_strided %m#{i}, %out{i}[%s0] strides [{strides}] "
            f"extents [{extents}] : {types[-1]}, memref<{shape}>\n"
        )
    rows = f"!tile.tile<{ROWS}xi32>"
    return f"""
tile.kernel @panel(%a : tensor<{data}> #tile.param<argument 0>,
    %b : tensor<1x1x1x{columns}x{type_}> #tile.param<argument 1>,
    %table : tensor<64x{type_}> #tile.param<argument 2>,
    %n : i32 #tile.param<argument 3>{outs})
    grid affine_map<(b, h, q_len) -> (1, 1, 1)>
    attributes {{vector_bytes = {vector_bytes} : i32}} {{
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %pitch = arith.constant {columns} : i64
  %w = arith.constant {columns} : i32
  %c0 = arith.constant 0 : i32
  %tx = tile.load_strided %a[%s0] strides [%pitch, %s1] extents [%n, %w] : tensor<{data}> -> {full}
  %tm = tile.load_strided %b[%s0] strides [%s1] extents [%w] : tensor<1x1x1x{columns}x{type_}> -> {cols}
  %rows = tile.iota %c0 : {rows}
  %cols = tile.iota %c0 : !tile.tile<{columns}xi32>
  %m:{len(outcomes)} = tile.panel_map [{ROWS}, {columns}] count %n (
      %x : {type_} = %tx [0, 1] : {full}, %y : {type_} = %tm [1] : {cols},
      %r : i32 = %rows [0] : {rows}, %c : i32 = %cols [1] : !tile.tile<{columns}xi32>,
      %t : tensor<64x{type_}> = %table [] : tensor<64x{type_}>) {{
    {body}
  }} as {json.dumps(outcomes)} -> {", ".join(types)}
  {stores}
  tile.return
}}
"""  # noqa: E501


def test_maps_of_many_ops_are_not_unrolled() -> None:
    for count in (MOST_UNROLLED, MOST_UNROLLED + 1):
        sums = [f"%sum{i + 1} = arith.addf %sum{i}, %y : f32" for i in range(1, count)]
        body = "\n".join(["%sum1 = arith.addf %x, %y : f32", *sums])
        body += f"\nflex.yield %sum{count} : f32"
        ctx, module = parse(kernel_text("f32", 32, body, ["tile"], 32))
        source = run_passes(ctx, module, PREPARE).source
        assert ("#pragma GCC unroll" in source) == (count == MOST_UNROLLED)


def check(
    type_: str,
    columns: int,
    body: str,
    outcomes: Sequence[str],
    count: int = 5,
    vector_bytes: int = 32,
) -> None:
    dtype = DTYPES[type_]
    x = (torch.randn(1, 1, ROWS, columns) * 9).to(dtype)
    m = (torch.randn(1, 1, 1, columns) * 9).to(dtype)
    table = (torch.randn(64) * 9).to(dtype)
    shapes = [(1, 1, ROWS if o == "tile" else 1, columns) for o in outcomes]
    want = [torch.zeros(s, dtype=dtype) for s in shapes]
    got = [torch.zeros(s, dtype=dtype) for s in shapes]
    text = kernel_text(type_, columns, body, outcomes, vector_bytes)
    ctx, module = parse(text)
    args: list[Tensor | int] = [x, m, table, count]
    run_module(module, [*args, *want])
    Kernel(run_passes(ctx, module, PREPARE))(x, [*args, *got])
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("type_", "columns", "vector_bytes"),
    pairwise(list(DTYPES), [1, 5, 16, 32, 40, 48], [16, 32, 64]),
)
def test_outcomes(type_: str, columns: int, vector_bytes: int) -> None:
    op = "i" if type_.startswith("i") else "f"
    body = f"""%d = arith.sub{op} %x, %y : {type_}
    flex.yield %d, %d, %x, %y : {type_}, {type_}, {type_}, {type_}"""
    outcomes = ["tile", "sum", "max", "min"]
    check(type_, columns, body, outcomes, vector_bytes=vector_bytes)


@pytest.mark.parametrize("count", [1, 2, ROWS])
def test_counts(count: int) -> None:
    body = "flex.yield %x, %x : f32, f32"
    check("f32", 32, body, ["max", "tile"], count)


READS = {
    "successive": "%i = arith.addi %r, %c : i32",
    "reversed": "%k = arith.constant 50 : i32\n%i = arith.subi %k, %c : i32",
    "of rows": "%i = arith.addi %r, %r : i32",
    "one number": "%i = arith.constant 3 : i32",
}


@pytest.mark.parametrize(
    ("name", "columns", "vector_bytes"),
    pairwise(list(READS), [5, 32, 40], [16, 32, 64]),
)
def test_reads(name: str, columns: int, vector_bytes: int) -> None:
    body = f"""{READS[name]}
    %e = tile.read %t[%i] : tensor<64xf32>, i32 -> f32
    %s = arith.addf %x, %e : f32
    flex.yield %s : f32"""
    check("f32", columns, body, ["tile"], vector_bytes=vector_bytes)


@pytest.mark.parametrize(
    ("name", "columns", "valid", "place"),
    pairwise(list(READS), [5, 32, 40], ["%c", "%r", "%i"], ["%i", "%place"]),
)
def test_reads_of_some_lanes(name: str, columns: int, valid: str, place: str) -> None:
    """Offsets of others may be far outside."""
    body = f"""{READS[name]}
    %three = arith.constant 3 : i32
    %far = arith.constant 1000000000 : i32
    %v = arith.cmpi slt, {valid}, %three : i32
    %place = arith.select %v, %i, %far : i32
    %e = tile.read %t[{place}] if %v : tensor<64xf32>, i32 -> f32
    %s = arith.addf %x, %e : f32
    flex.yield %s : f32"""
    check("f32", columns, body, ["tile"], vector_bytes=64)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float32, torch.int64])
@pytest.mark.parametrize("columns", [5, 16, 32, 40])
def test_reductions_stay_within_their_row(
    tmp_path: Path, columns: int, dtype: torch.dtype
) -> None:
    """Vectors of bytes have room for more than a row of a tile."""
    name = {torch.float32: "float"}.get(dtype, f"{dtype}_t".removeprefix("torch."))
    source = tmp_path / "reduce.cpp"
    source.write_text(f"""#include "flexc_support.h"
using namespace flexc;
FLEXC_KERNEL int pitch_of() {{ return pitch<{name}>({columns}); }}
FLEXC_KERNEL void combine({name}* out, {name}* in) {{
    const Tile<{name}, 3, {columns}> tile{{in}};
    reduce_columns<Max>(Tile<{name}, {columns}>{{out}}, tile);
}}""")
    find_compiler().build(source, output=tmp_path / "reduce.so")
    library = ctypes.CDLL(str(tmp_path / "reduce.so"))
    pitch: int = library.pitch_of()
    rows = torch.randint(-9, 9, (3, pitch)).to(dtype)
    out = torch.full((4 * pitch,), 77, dtype=dtype)
    library.combine(*(ctypes.c_void_p(t.data_ptr()) for t in (out, rows)))
    assert torch.equal(out[:columns], rows.amax(0)[:columns])
    assert (out[pitch:] == 77).all()
