"""What captured tensors read as."""

from __future__ import annotations

import pytest
import torch
from xdsl.utils.exceptions import InterpretationError

from tests.unit.interpreters.ir import run_scalar

LOAD_2D = "%r = flex.load_capture %a[%b, %c] : tensor<?x?xf32>, i32, i32"
ARGS_2D = "tensor<?x?xf32>, i32, i32"


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_load_capture_is_zero_out_of_range():
    table = torch.arange(1.0, 7.0).view(2, 3)
    i, j = index(-1, 0, 1, 2), index(-1, 0, 2, 3)
    got = run_scalar(LOAD_2D, ARGS_2D, "f32", table, i[:, None], j)
    assert got.tolist() == [[0] * 4, [0, 1, 3, 0], [0, 4, 6, 0], [0] * 4]


def test_load_capture_of_an_empty_tensor_is_zero():
    got = run_scalar(LOAD_2D, ARGS_2D, "f32", torch.empty(0, 3), index(0, 1), 0)
    assert got.tolist() == [0.0, 0.0]


def test_load_capture_of_a_number():
    code = "%r = flex.load_capture %a[] : tensor<f32>"
    assert run_scalar(code, "tensor<f32>", "f32", torch.tensor(2.5)).item() == 2.5


def test_load_capture_by_a_narrow_index():
    code = "%r = flex.load_capture %a[%b] : tensor<?xf32>, i8"
    i = torch.tensor([-1, 127], dtype=torch.int8)
    got = run_scalar(code, "tensor<?xf32>, i8", "f32", torch.arange(300.0), i)
    assert got.tolist() == [0.0, 127.0]


def test_dim():
    code = "%r = flex.dim %a, 1 : tensor<?x?xf32> -> i32"
    got = run_scalar(code, "tensor<?x?xf32>", "i32", torch.empty(2, 5))
    assert got.dtype == torch.int32
    assert got.item() == 5


def test_read_follows_storage():
    # The transpose's second row starts at the second element of its storage.
    table = torch.arange(6.0).view(2, 3).T
    code = "%r = tile.read %a[%b] : tensor<?x?xf32>, i64 -> f32"
    got = run_scalar(code, "tensor<?x?xf32>, i64", "f32", table, torch.tensor([1, 3]))
    assert got.tolist() == [1.0, 3.0]


def test_read_counts_from_the_first_element():
    code = "%r = tile.read %a[%b] : tensor<?xf32>, i64 -> f32"
    part = torch.arange(6.0)[2:4]
    assert run_scalar(code, "tensor<?xf32>, i64", "f32", part, 1).item() == 3.0


def test_read_is_zero_where_not_valid():
    code = "%r = tile.read %a[%b] if %c : tensor<?xf32>, i64 -> f32"
    got = run_scalar(
        code,
        "tensor<?xf32>, i64, i1",
        "f32",
        torch.arange(1.0, 4.0),
        torch.tensor([-7, 0, 2, 99]),
        torch.tensor([False, True, True, False]),
    )
    assert got.tolist() == [0.0, 1.0, 3.0, 0.0]


def test_read_out_of_bounds_is_an_error():
    code = "%r = tile.read %a[%b] : tensor<?xf32>, i64 -> f32"
    with pytest.raises(InterpretationError, match="within 3 elements, got 3"):
        run_scalar(code, "tensor<?xf32>, i64", "f32", torch.arange(3.0), 3)


DIAGONALS = """%r = tile.read_diagonals %a[%b] step {step}
    : tensor<?xf32>, {first} -> !tile.tile<2x3xf32>"""
READ = "!tile.tile<2x3xf32>"


@pytest.mark.parametrize("first", ["i32", "i64"])
def test_diagonals_of_a_tensor(first: str):
    args = (torch.arange(4.0), torch.tensor(2))
    for step, rows in ((1, [[2, 1, 0], [3, 2, 1]]), (-1, [[2, 3, 4], [1, 2, 3]])):
        code = DIAGONALS.format(step=step, first=first)
        table = torch.arange(5.0) if step < 0 else args[0]
        start = args[1].to(torch.int32 if first == "i32" else torch.int64)
        got = run_scalar(code, f"tensor<?xf32>, {first}", READ, table, start)
        assert got.tolist() == rows


def test_diagonals_out_of_bounds_are_an_error():
    code = DIAGONALS.format(step=1, first="i32")
    first = torch.tensor(2, dtype=torch.int32)
    with pytest.raises(InterpretationError, match="within 3 elements, got 3"):
        run_scalar(code, "tensor<?xf32>, i32", READ, torch.arange(3.0), first)


def test_diagonals_beyond_those_that_count_are_no_numbers():
    code = """%r = tile.read_diagonals %a[%b] step 1 rows %c columns %c
        : tensor<?xf32>, i32 -> !tile.tile<2x3xf32>"""
    types, one = "tensor<?xf32>, i32, i32", torch.tensor(1, dtype=torch.int32)
    got = run_scalar(code, types, READ, torch.arange(2.0), one, one)
    assert got[0, 0] == 1
    assert got.isnan().sum() == 5


def test_rows_before_the_tile_may_be_read():
    """None of its own counts: the last one that does is read, and must be there."""
    code = """%r = tile.read_diagonals %a[%b] step 1 rows %c
        : tensor<?xf32>, i32 -> !tile.tile<2x3xf32>"""
    types = "tensor<?xf32>, i32, i32"
    first, rows = (torch.tensor(n, dtype=torch.int32) for n in (6, -3))
    got = run_scalar(code, types, READ, torch.arange(3.0), first, rows)
    assert got.isnan().all()
    with pytest.raises(InterpretationError, match="within 2 elements"):
        run_scalar(code, types, READ, torch.arange(2.0), first, rows)


def test_fmod_is_exact():
    code = "%r = flex.fmod %a, %b : f32"
    x = torch.tensor([7.5, -7.5, 1e30])
    assert run_scalar(code, "f32, f32", "f32", x, 2.0).tolist() == [1.5, -1.5, 0.0]
