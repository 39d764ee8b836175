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


def test_fmod_is_exact():
    code = "%r = flex.fmod %a, %b : f32"
    x = torch.tensor([7.5, -7.5, 1e30])
    assert run_scalar(code, "f32, f32", "f32", x, 2.0).tolist() == [1.5, -1.5, 0.0]
