"""Integer ops against Python's unbounded integers, at every width."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.unit.interpreters.ir import run_scalar

DTYPES = {
    1: torch.bool,
    8: torch.int8,
    16: torch.int16,
    32: torch.int32,
    64: torch.int64,
}
WIDTHS = (8, 16, 32, 64)


def wrap(x: int, width: int) -> int:
    """The signed number that the low bits of `x` say."""
    return (x + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def numbers(width: int) -> list[int]:
    """Signed numbers that have gone wrong before."""
    top = 1 << (width - 1)
    small = [*range(-9, 10), 63, 64, 100, -100]
    return [wrap(n, width) for n in (*small, top - 1, top - 2, -top, 1 - top, top // 2)]


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def shift_left(x: int, by: int, width: int) -> int:
    return x << by if 0 <= by < width else 0


Meaning = Callable[[int, int, int], int]

SIGNED: dict[str, Meaning] = {
    "addi": lambda x, y, w: x + y,
    "subi": lambda x, y, w: x - y,
    "muli": lambda x, y, w: x * y,
    "andi": lambda x, y, w: x & y,
    "ori": lambda x, y, w: x | y,
    "xori": lambda x, y, w: x ^ y,
    "minsi": lambda x, y, w: min(x, y),
    "maxsi": lambda x, y, w: max(x, y),
    "divsi": lambda x, y, w: truncated(x, y) if y else 0,
    "floordivsi": lambda x, y, w: x // y if y else 0,
    "ceildivsi": lambda x, y, w: -(-x // y) if y else 0,
    "remsi": lambda x, y, w: x - truncated(x, y) * y if y else 0,
    "shli": shift_left,
    "shrsi": lambda x, y, w: x >> (y if 0 <= y < w else w),
}

UNSIGNED: dict[str, Meaning] = {
    "minui": lambda x, y, w: min(x, y),
    "maxui": lambda x, y, w: max(x, y),
    "divui": lambda x, y, w: x // y if y else 0,
    "ceildivui": lambda x, y, w: -(-x // y) if y else 0,
    "remui": lambda x, y, w: x % y if y else 0,
    "shrui": lambda x, y, w: x >> y if y < w else 0,
}

CMPI: dict[str, tuple[bool, Callable[[int, int], bool]]] = {
    "eq": (True, lambda x, y: x == y),
    "ne": (True, lambda x, y: x != y),
    "slt": (True, lambda x, y: x < y),
    "sle": (True, lambda x, y: x <= y),
    "sgt": (True, lambda x, y: x > y),
    "sge": (True, lambda x, y: x >= y),
    "ult": (False, lambda x, y: x < y),
    "ule": (False, lambda x, y: x <= y),
    "ugt": (False, lambda x, y: x > y),
    "uge": (False, lambda x, y: x >= y),
}


def column(values: list[int], width: int) -> Tensor:
    return torch.tensor(values).to(DTYPES[width])[:, None]


def row(values: list[int], width: int) -> Tensor:
    return torch.tensor(values).to(DTYPES[width])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_binary_op_agrees_with_python(name: str, width: int):
    values = numbers(width)
    code = f"%r = arith.{name} %a, %b : i{width}"
    types = f"i{width}, i{width}"
    got = run_scalar(
        code, types, f"i{width}", column(values, width), row(values, width)
    )
    assert got.dtype == DTYPES[width]
    mask = -1 if name in SIGNED else (1 << width) - 1
    meaning = (SIGNED | UNSIGNED)[name]
    expected = [
        [wrap(meaning(x & mask, y & mask, width), width) for y in values]
        for x in values
    ]
    assert got.tolist() == expected


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_binary_op_of_one_number_agrees_with_that_of_many(name: str):
    code = f"%r = arith.{name} %a, %b : i32"
    many = torch.tensor([7, -7, 0, -(2**31)], dtype=torch.int32)
    for y in (3, -3, 0, -1, 40):
        together = run_scalar(code, "i32, i32", "i32", many, y)
        alone = [run_scalar(code, "i32, i32", "i32", x, y) for x in many.tolist()]
        assert together.tolist() == [a.item() for a in alone]


@pytest.mark.parametrize("name", ["addi", "subi", "muli", "andi", "ori", "xori"])
def test_bits_wrap(name: str):
    bits = torch.tensor([False, True])
    got = run_scalar(
        f"%r = arith.{name} %a, %b : i1", "i1, i1", "i1", bits[:, None], bits
    )
    assert got.dtype == torch.bool
    expected = [[bool(SIGNED[name](x, y, 1) & 1) for y in (0, 1)] for x in (0, 1)]
    assert got.tolist() == expected


@pytest.mark.parametrize("name", ["divui", "remui", "shrui", "divsi", "remsi", "maxsi"])
def test_bits_have_all_ops(name: str):
    bits = torch.tensor([False, True])
    code = f"%r = arith.{name} %a, %b : i1"
    assert run_scalar(code, "i1, i1", "i1", bits, bits).dtype == torch.bool


@pytest.mark.parametrize("width", [1, *WIDTHS])
@pytest.mark.parametrize("predicate", CMPI)
def test_cmpi_agrees_with_python(predicate: str, width: int):
    values = [0, -1] if width == 1 else numbers(width)
    code = f"%r = arith.cmpi {predicate}, %a, %b : i{width}"
    types = f"i{width}, i{width}"
    got = run_scalar(code, types, "i1", column(values, width), row(values, width))
    signed, compare = CMPI[predicate]
    mask = -1 if signed else (1 << width) - 1
    assert got.tolist() == [
        [compare(x & mask, y & mask) for y in values] for x in values
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_counts_of_bits(width: int):
    values = numbers(width)
    words = [f"{v & ((1 << width) - 1):0{width}b}" for v in values]

    def run(name: str) -> list[int]:
        code = f"%r = math.{name} %a : i{width}"
        return run_scalar(code, f"i{width}", f"i{width}", row(values, width)).tolist()

    assert run("ctpop") == [w.count("1") for w in words]
    assert run("ctlz") == [len(w) - len(w.lstrip("0")) for w in words]
    assert run("cttz") == [len(w) - len(w.rstrip("0")) for w in words]


@pytest.mark.parametrize("width", WIDTHS)
def test_absi_wraps_the_smallest(width: int):
    values = numbers(width)
    code = f"%r = math.absi %a : i{width}"
    got = run_scalar(code, f"i{width}", f"i{width}", row(values, width))
    assert got.tolist() == [wrap(abs(v), width) for v in values]


def test_ipowi():
    x = torch.tensor([-2, -1, 0, 1, 3], dtype=torch.int32)[:, None]
    n = torch.tensor([-3, -2, 0, 1, 5], dtype=torch.int32)
    got = run_scalar("%r = math.ipowi %a, %b : i32", "i32, i32", "i32", x, n)
    assert got.tolist() == [
        [0, 0, 1, -2, -32],
        [-1, 1, 1, -1, -1],
        [0, 0, 1, 0, 0],
        [1, 1, 1, 1, 1],
        [0, 0, 1, 3, 243],
    ]
    alone = run_scalar("%r = math.ipowi %a, %b : i32", "i32, i32", "i32", x, -1)
    assert alone.flatten().tolist() == [0, -1, 0, 1, 0]


@pytest.mark.parametrize(
    ("code", "source", "result", "values", "expected"),
    [
        ("extsi", "i8", "i32", [-1, 127], [-1, 127]),
        ("extui", "i8", "i32", [-1, 127], [255, 127]),
        ("extui", "i32", "i64", [-1, 5], [2**32 - 1, 5]),
        ("extsi", "i1", "i32", [0, 1], [0, -1]),
        ("extui", "i1", "i32", [0, 1], [0, 1]),
        ("trunci", "i32", "i8", [255, 128, 256], [-1, -128, 0]),
        ("trunci", "i32", "i1", [2, 3], [False, True]),
        ("index_cast", "i32", "index", [-5, 7], [-5, 7]),
        ("index_cast", "index", "i32", [-5, 2**32 + 7], [-5, 7]),
        ("sitofp", "i8", "f32", [-1, 127], [-1.0, 127.0]),
        ("sitofp", "i1", "f32", [0, 1], [0.0, -1.0]),
        ("uitofp", "i8", "f32", [-1, 127], [255.0, 127.0]),
        ("uitofp", "i1", "f32", [0, 1], [0.0, 1.0]),
        ("uitofp", "i32", "f64", [-1, 5], [2.0**32 - 1, 5.0]),
        ("uitofp", "i64", "f32", [-1, 5, -(2**63)], [2.0**64, 5.0, 2.0**63]),
    ],
)
def test_casts(code: str, source: str, result: str, values: list, expected: list):
    width = 64 if source == "index" else int(source[1:])
    got = run_scalar(
        f"%r = arith.{code} %a : {source} to {result}",
        source,
        result,
        row(values, width),
    )
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("constant", "type_", "expected"),
    [
        ("255", "i8", -1),
        ("-1", "i32", -1),
        ("4294967295", "i32", -1),
        ("true", "i1", True),
        ("7", "index", 7),
    ],
)
def test_constants(constant: str, type_: str, expected: object):
    suffix = "" if type_ == "i1" else f" : {type_}"
    got = run_scalar(f"%r = arith.constant {constant}{suffix}", "", type_)
    assert got.item() == expected


def test_sitofp_of_false_is_positive_zero():
    got = run_scalar("%r = arith.sitofp %a : i1 to f32", "i1", "f32", False)
    assert not got.signbit()
