"""Products in registers, run in C++ and by the interpreter, against torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from flexc.passes.cpu.products import TileRegisterProductsPass
from flexc.passes.targets.cpp import MACHINES
from flexc.passes.targets.target import MachineName
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import ELEMENTS, PREPARE, parse, run_passes
from tests.support.pairwise import pairwise

ROWS, INNER = 22, 13
COUNTS = ((ROWS, INNER), (9, 7), (5, 1), (1, 0), (16, 13), (0, 4))
STRIDES = ((40, 1), (1, 40), (37, 3), (-37, 3), (2, -50), (0, 1))


def kernel(dtype: torch.dtype, columns: int, row: str, inner: str) -> str:
    """Two products, onto zeros and onto what is there, of counted rows and terms.

    One is over all terms: what is summed over is a count of the product, too.
    """
    stored = ELEMENTS[dtype]
    computed = "f64" if dtype == torch.float64 else "f32"
    lhs = f"!tile.tile<{ROWS}x{INNER}x{computed}>"
    rhs = f"!tile.tile<{INNER}x{columns}x{computed}>"
    result = f"!tile.tile<{ROWS}x{columns}x{computed}>"
    place = "%rows, %columns] :"
    return f"""
tile.kernel @products(
    %a : tensor<?x?x?x{stored}> #tile.param<argument 0>,
    %b : tensor<?x{computed}> #tile.param<argument 1>,
    %c : tensor<?x{computed}> #tile.param<argument 2>,
    %rows : i32 #tile.param<argument 3>, %inner : i32 #tile.param<argument 4>,
    %base : i64 #tile.param<argument 5>,
    %s0 : i64 #tile.param<argument 6>, %s1 : i64 #tile.param<argument 7>,
    %out : memref<?x{computed}> #tile.param<argument 8>,
    %out2 : memref<?x{computed}> #tile.param<argument 9>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %one = arith.constant 1 : i64
  %none = arith.constant 0 : i64
  %pitch = arith.constant {columns} : i64
  %columns = arith.constant {columns} : i32
  %all_rows = arith.constant {ROWS} : i32
  %all_inner = arith.constant {INNER} : i32
  %zero = arith.constant 0.0 : {computed}
  %y = tile.load_strided %b[%none] strides [%pitch, %one]
      extents [%all_inner, %columns] : tensor<?x{computed}> -> {rhs}
  %acc = tile.load_strided %c[%none] strides [%pitch, %one]
      extents [%all_rows, %columns] : tensor<?x{computed}> -> {result}
  %zeros = tile.full %zero : {computed} -> {result}
  %x = tile.load_strided %a[%base] strides [{row}, {inner}]
      extents [%rows, %all_inner] counted 0 : tensor<?x?x?x{stored}> -> {lhs}
  %p = tile.dot %x, %y, %zeros count %inner : {lhs}, {rhs}, {result} -> {result}
  %z = tile.load_strided %a[%base] strides [{row}, {inner}]
      extents [%all_rows, %inner] counted 1 : tensor<?x?x?x{stored}> -> {lhs}
  %q = tile.dot %z, %y, %acc count %inner : {lhs}, {rhs}, {result} -> {result}
  tile.store_strided %p, %out[%none] strides [%pitch, %one]
      extents [{place} {result}, memref<?x{computed}>
  tile.store_strided %q, %out2[%none] strides [%pitch, %one]
      extents [%all_rows, %columns] : {result}, memref<?x{computed}>
  tile.return
}}
"""


def expected(
    tensors: tuple[Tensor, Tensor, Tensor],
    counts: tuple[int, int],
    strides: tuple[int, int],
    base: int,
) -> tuple[Tensor, Tensor]:
    """The first rows of the first product, all of the second."""
    a, b, c = tensors
    i, k = torch.arange(ROWS)[:, None], torch.arange(INNER)[None, :]
    lhs = a.view(-1)[base + i * strides[0] + k * strides[1]].to(b.dtype)
    rows, inner = counts
    found = lhs[:, :inner] @ b.view(INNER, -1)[:inner]
    return found[:rows], found + c.view(ROWS, -1)


@pytest.mark.parametrize(
    ("machine", "dtype", "form"),
    pairwise(
        [m for m in MACHINES if m != "neon"],
        list(ELEMENTS),
        [(5, None), (32, 0), (64, 1), (40, None)],
    ),
    ids=str,
)
def test_products_of_elements_at_any_stride(
    machine: MachineName, dtype: torch.dtype, form: tuple[int, int | None]
) -> None:
    """Of so many columns, and with a stride of 1 along rows or columns, or neither."""
    columns, unit = form
    names = ["%s0", "%s1"]
    if unit is not None:
        names[unit] = "%one"
    ctx, module = parse(kernel(dtype, columns, *names))
    TileRegisterProductsPass(machine).apply(ctx, module)
    module.verify()
    in_place = str(module).count("tile.register_product %a[")
    assert in_place == (0 if dtype == torch.float16 and machine == "portable" else 2)
    interpreted = module.clone()
    run = Kernel(run_passes(ctx, module, PREPARE))
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    a = torch.randn(1, 1, 3000).to(dtype)
    b, c = (torch.randn(n * columns, dtype=computed) for n in (INNER, ROWS))
    tensors = a, b, c
    cases = [
        (counts, strides)
        for counts, strides in product(COUNTS, STRIDES)
        if unit is None or strides[unit] == 1
    ]
    for number, (counts, strides) in enumerate(cases):
        base = 1300
        want = expected(tensors, counts, strides, base)
        scalars = [*counts, base, *strides]
        for text in (interpreted, None) if number < 2 else (None,):
            outs = [torch.full((ROWS * columns,), torch.nan, dtype=computed)] * 2
            outs = [out.clone() for out in outs]
            args = [*tensors, *scalars, *outs]
            run_module(text, args) if text is not None else run(a[None], args)
            for out, right in zip(outs, want, strict=True):
                got = out.view(ROWS, columns)
                torch.testing.assert_close(got[: len(right)], right)
                assert got[len(right) :].isnan().all()


@pytest.mark.parametrize("unit", [0, 1], ids=["unit-rows", "unit-k"])
def test_infinities_beside_others_stay_infinite(unit: int) -> None:
    """Neighbours in bf16 are read together: as one float, they may be a NaN."""
    names = ["%s0", "%s1"]
    names[unit] = "%one"
    ctx, module = parse(kernel(torch.bfloat16, 32, *names))
    TileRegisterProductsPass("avx512").apply(ctx, module)
    run = Kernel(run_passes(ctx, module, PREPARE))
    a = torch.rand(3000).add(1).bfloat16()
    a[::2] = torch.inf
    ones, zeros = torch.ones(INNER * 32), torch.zeros(ROWS * 32)
    strides = (1, 40) if unit == 0 else (41, 1)
    out = [torch.empty(ROWS * 32) for _ in range(2)]
    run(a[None, None, None], [a, ones, zeros, ROWS, INNER, 8, *strides, *out])
    for got, right in zip(
        out, expected((a, ones, zeros), (ROWS, INNER), strides, 8), strict=True
    ):
        assert got.view(ROWS, 32).equal(right)
