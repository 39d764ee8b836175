"""Tiles loaded and stored at any strides and extents, in C++, against torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flexc.passes.targets.cpp import MACHINES
from flexc.passes.targets.target import MachineName
from flexc.runtime.kernels.cpp_compiler import find_compiler
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import ELEMENTS, PREPARE, parse, run_passes
from tests.support.pairwise import pairwise

PLACES = ((70, 1), (1, 70), (2, 71), (-70, 1), (1, -70), (-1, 70), (0, 1), (1, 1))
"""Strides; those that are told apart are 1."""


def kernel(dtype: torch.dtype, shape: tuple[int, int], bits: int) -> str:
    """A tile is loaded at some strides and extents, and stored at others."""
    m, n = shape
    stored = ELEMENTS[dtype]
    computed = {64: "f64", 32: "f32", 16: stored}[bits]
    tile = f"!tile.tile<{m}x{n}x{computed}>"
    numbers = ", ".join(
        f"%{name} : {'i32' if name[0] == 'e' else 'i64'} #tile.param<argument {i + 2}>"
        for i, name in enumerate(("s0", "s1", "e0", "e1", "t0", "t1", "e2", "e3"))
    )
    return f"""
tile.kernel @move(%a : tensor<?x?x?x{stored}> #tile.param<argument 0>,
    %out : memref<?x?x?x{stored}> #tile.param<argument 1>, {numbers})
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %middle = arith.constant 6000 : i64
  %x = tile.load_strided %a[%middle] strides [%s0, %s1] extents [%e0, %e1]
      : tensor<?x?x?x{stored}> -> {tile}
  tile.store_strided %x, %out[%middle] strides [%t0, %t1] extents [%e2, %e3]
      : {tile}, memref<?x?x?x{stored}>
  tile.return
}}
"""


def places(strides: tuple[int, int], extents: tuple[int, int]) -> Tensor:
    """Where the elements of a tile are within the extents."""
    i, j = (torch.arange(max(0, n)) for n in extents)
    return 6000 + i[:, None] * strides[0] + j[None, :] * strides[1]


@pytest.mark.parametrize(
    ("machine", "element", "shape"),
    pairwise(
        [m for m in MACHINES if m != "neon"],
        [
            (torch.float64, 64),
            (torch.float32, 32),
            (torch.bfloat16, 32),
            (torch.float16, 32),
            (torch.bfloat16, 16),
        ],
        [(40, 32), (3, 21)],
    ),
    ids=str,
)
def test_tiles_are_loaded_and_stored(
    machine: MachineName, element: tuple[torch.dtype, int], shape: tuple[int, int]
) -> None:
    """Of a type in memory, and of so many bits in a tile."""
    dtype, bits = element
    text = kernel(dtype, shape, bits)
    width = f"attributes {{vector_bytes = {MACHINES[machine].vector_bytes} : i32}} {{"
    ctx, module = parse(text.replace("(1, 1, 1)> {", f"(1, 1, 1)> {width}"))
    run = Kernel(run_passes(ctx, module, PREPARE))
    m, n = shape
    a = torch.randn(1, 1, 1, 12000).to(dtype)
    extents = ((m, n), (m - 1, n - 3), (m + 5, 0), (-1, n), (2, 5), (m, n + 1))
    for number, given in enumerate(PLACES):
        for turn, some in enumerate(extents):
            kept = extents[(number + turn) % len(extents)]
            to = PLACES[(number + turn) % 4]
            read = tuple(min(x, size) for x, size in zip(some, shape, strict=True))
            written = tuple(min(x, size) for x, size in zip(kept, shape, strict=True))
            where = places(given, (read[0], read[1]))
            tile = a.new_zeros(m, n)
            tile[: where.shape[0], : where.shape[1]] = a.view(-1)[where]
            want = torch.full_like(a, 3)
            there = places(to, (written[0], written[1]))
            want.view(-1)[there] = tile[: there.shape[0], : there.shape[1]]
            got = torch.full_like(a, 3)
            run(a, [a, got, *given, *some, *to, *kept])
            assert got.equal(want), (given, some, to, kept)


ADDED = """
tile.kernel @add(%a : f32 #tile.param<argument 0>,
    %out : memref<?xf32> #tile.param<argument 1>,
    %n : i32 #tile.param<argument 2>, %s : i64 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {{
  %zero = arith.constant 0 : i64
  %x = tile.full %a : f32 -> {tile}
  tile.add_strided %x, %out[%zero] strides [{strides}] count %n : {tile}, memref<?xf32>
  tile.return
}}
"""


@pytest.mark.parametrize("stride", [1, 40])
def test_no_more_is_added_than_a_count_says(stride: int) -> None:
    cases = (("%s", "!tile.tile<12xf32>", 1), ("%s, %s", "!tile.tile<12x3xf32>", 3))
    for strides, tile, columns in cases:
        ctx, module = parse(ADDED.format(strides=strides, tile=tile))
        run = Kernel(run_passes(ctx, module, PREPARE))
        for count in (12, 7, 0):
            got, want = torch.ones(2000), torch.ones(2000)
            run(torch.empty(1, 1, 1, 1), [2.0, got, count, stride])
            for i in range(count):
                for j in range(columns):
                    want[(i + j) * stride] += 2
            assert got.equal(want), (tile, count)


NEAR_ROWS = """
#include "flexc_support.h"
using namespace flexc;
FLEXC_KERNEL void near_rows(
    const float* in, int64_t stride, const int64_t* head, const int64_t* start,
    const int32_t* count, int n, bool repeated, float* out, bool* is_copy) {
    NearRows<float, 24> near(repeated);
    for (int i = 0; i < n; ++i) {
        int64_t step;
        const float* rows = near.find(step, in + head[i], start[i], stride, count[i]);
        is_copy[i] = rows != in + head[i] + start[i] * stride;
        for (int row = 0; row < count[i]; ++row)
            __builtin_memcpy(out + (i * 8 + row) * 24, rows + row * step, 96);
    }
}
"""
NEAR_ROOM = (9 << 18) // (3 * 64)
"""The rows of 24 floats, three cache lines apart, for which a thread has room."""

Reads = list[tuple[int, int, int]]
"""The head, the first row and the number of rows of each read."""


@pytest.fixture(scope="module")
def near_rows(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("near")
    (folder / "near.cpp").write_text(NEAR_ROWS)
    find_compiler().build(folder / "near.cpp", output=folder / "near.so")
    return ctypes.CDLL(str(folder / "near.so"))


def copied(
    library: ctypes.CDLL, reads: Reads, stride: int = 2 * 24, repeated: bool = True
) -> list[bool]:
    """Return which reads were of copies; all must have the rows of the memory."""
    memory = torch.randn(2, NEAR_ROOM + 8, stride)
    heads, starts, counts = (
        torch.tensor(column) for column in zip(*reads, strict=True)
    )
    out, is_copy = (
        torch.zeros(len(reads), 8, 24),
        torch.zeros(len(reads), dtype=torch.bool),
    )
    head, count = heads * memory.stride(0), counts.int()
    pointers = [
        ctypes.c_void_p(t.data_ptr())
        for t in (memory, head, starts, count, out, is_copy)
    ]
    library.near_rows(
        *(pointers[0], ctypes.c_int64(stride), *pointers[1:4], len(reads)),
        *(ctypes.c_bool(repeated), *pointers[4:]),
    )
    for (at, first, n), got in zip(reads, out, strict=True):
        assert torch.equal(got[:n], memory[at, first : first + n, :24])
    return is_copy.tolist()


def test_rows_are_copied_when_all_of_them_are_read_again(
    near_rows: ctypes.CDLL,
) -> None:
    reads = [(0, 0, 8), (0, 4, 8), (0, 0, 8), (0, 6, 3), (0, 9, 4), (0, 5, 8)]
    assert copied(near_rows, reads) == [False, False, True, True, False, True]
    other = [(0, 0, 8), (0, 0, 8), (1, 0, 8), (0, 0, 8), (0, 0, 8), (0, 0, 8)]
    assert copied(near_rows, other) == [False, True, False, False, True, True]


def test_rows_that_are_near_or_seldom_read_are_not_copied(
    near_rows: ctypes.CDLL,
) -> None:
    twice: Reads = [(0, 0, 8)] * 2
    assert copied(near_rows, twice, stride=24) == [False, False]
    assert copied(near_rows, twice, stride=24 + 16) == [False, False]
    assert copied(near_rows, twice, repeated=False) == [False, False]
    assert copied(near_rows, twice, stride=128) == [False, True]
    last: Reads = [(1, NEAR_ROOM - 8, 8)] * 2
    beyond: Reads = [(1, NEAR_ROOM - 7, 8)] * 2
    assert copied(near_rows, last) == [False, True]
    assert copied(near_rows, beyond) == [False, False]


def test_rows_at_random(near_rows: ctypes.CDLL) -> None:
    heads, starts, counts = (torch.randint(n, (2000,)) for n in (2, 60, 9))
    heads = heads.sort().values
    reads = list(zip(*(x.tolist() for x in (heads, starts, counts)), strict=True))
    assert any(copied(near_rows, reads))
