"""Reads along diagonals: what threads load, and that it compiles, without a GPU."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from flexc.codegen.gluon import support
from tests.codegen.diagonal_kernel import read_tile
from tests.codegen.gluon_kernels import HOPPER, Compiled, compiled, lower
from tests.codegen.triton_kernels import Variant
from tests.support.pairwise import in_turn

pytestmark = pytest.mark.usefixtures("compiler_caches")

MARGIN = support.MARGIN.value
ADD = re.compile(r"\[\$(\d+) \+ (-?\d+)\]")


def elements(warp: int, lane: int, columns: int) -> list[tuple[int, int]]:
    """The elements of a thread, as a product of so many columns lies."""
    row, column = 16 * warp + lane // 4, 2 * (lane % 4)
    return [
        (row + 8 * (n >> 1 & 1), column + (n & 1) + 8 * (n >> 2))
        for n in range(columns // 2)
    ]


def run(code: str, near: int, far: int, left: int | None, size: int) -> dict[int, int]:
    """What a thread loads for each element: an offset, -1 where it is not valid.

    Of PTX for elements of `size` bytes and addresses `near` and `far` of an int array.
    """
    count = len(re.findall(r"mov\.b32 \$\d+, y", code))
    given = {count: near, 2 * count: far}
    loads: dict[int, int] = {}
    results: dict[int, int] = {}
    valid = True
    for line in code.splitlines():
        if line.startswith("setp"):
            valid = left is not None and left > int(line.split()[-1].rstrip(";"))
        elif "ld.global" in line:
            (slot,) = re.findall(r"x(\d+),", line)
            ((register, offset),) = ADD.findall(line)
            at, rest = divmod(int(offset), size)
            assert rest == 0
            is_read = valid or not line.startswith("@p")
            loads[int(slot)] = given[int(register)] + at if is_read else -1
        elif found := re.match(r"mov\.b32 \$(\d+), y(\d+);", line):
            results[int(found[1])] = loads[int(found[2])]
    return results


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("columns", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("counting", [(None, None), (20, None), (-5, None), (64, 37)])
def test_what_threads_load(
    columns: int, step: int, counting: tuple[int | None, int | None]
) -> None:
    rows, limit = counting
    last = 63 if rows is None else rows - 1
    code: Any = support.read_code
    text = code("bf16", columns // 2, step, limit is not None)
    assert text.count("ld.global") == 2 * (columns // 8 + 1)
    for warp, lane in product(range(4), range(32)):
        own = elements(warp, lane, columns)
        row, column = own[0]
        near, far = (step * (min(r, last) - column) + MARGIN for r in (row, row + 8))
        left = None if limit is None else limit - column
        loaded = run(text, near, far, left, 2)
        assert len(loaded) == len(own)
        read = set(loaded.values()) - {-1}
        exist = range(columns if limit is None else limit)
        safe = {step * (r - c) for r in range(min(0, last), last + 1) for c in exist}
        assert read <= safe
        for number, (i, j) in enumerate(own):
            if i <= last and (limit is None or j < limit):
                assert loaded[number] == step * (i - j)


def compile_read(
    element: str, columns: int, first: str, rows: bool, limit: bool
) -> Any:
    names = ["table", "out", "first", "rows", "columns"]
    result = "i32" if element == "i32" else "fp32"
    types = [f"*{element}", f"*{result}", first, "i32", "i32"]
    constants = {"STEP": 1, "COLUMNS": columns, "HAS_ROWS": rows, "HAS_COLUMNS": limit}
    signature = dict(zip(names, types, strict=True))
    signature |= dict.fromkeys(constants, "constexpr")
    at = {(read_tile.arg_names.index(name),): v for name, v in constants.items()}
    source = GluonASTSource(read_tile, signature, at)
    target = GPUTarget("cuda", HOPPER, 32)
    return triton.compile(source, target=target, options={"num_warps": 4})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32", "i32"])
def test_all_types_compile(element: str) -> None:
    ptx = compile_read(element, 64, "i32", False, False).asm["ptx"]
    assert ptx.count("ld.global.nc") == 2 * (64 // 8 + 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("columns", [16, 32, 128, 256])
def test_all_widths_compile(columns: int) -> None:
    """Which also says that a tile lies as it is taken to."""
    for rows, limit in product((False, True), repeat=2):
        compile_read("bf16", columns, "i64", rows, limit)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("head_dim", "length"), in_turn([128, 256], [256, 200]))
def test_kernels_read_each_diagonal_once(
    head_dim: int, length: int, tmp_path: Path
) -> None:
    variant = Variant("relative_bias", "sm90", head_dim=head_dim, length=length)
    assert "read_diagonals(" in lower(variant).source
    kernel: Compiled = compiled(variant)
    columns = 64 if head_dim == 256 else 128
    loads = re.findall(r"LDG\.E\S*", kernel.sass(tmp_path))
    # In the first block and in the loop; an incomplete block has a loop of its own.
    places = 2 if length % columns == 0 else 3
    assert len(loads) == places * 2 * 2 * (columns // 8 + 1)
