"""Floating-point ops: agreement with torch, and the corners MLIR fixes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.unit.interpreters.ir import run_scalar

INF, NAN = math.inf, math.nan
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
}
VALUES = [NAN, -INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 20.0, INF]

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.acos": torch.acos,
    "math.acosh": torch.acosh,
    "math.asin": torch.asin,
    "math.asinh": torch.asinh,
    "math.atan": torch.atan,
    "math.atanh": torch.atanh,
    "math.ceil": torch.ceil,
    "math.cos": torch.cos,
    "math.cosh": torch.cosh,
    "math.erf": torch.erf,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.expm1": torch.expm1,
    "math.floor": torch.floor,
    "math.log": torch.log,
    "math.log10": torch.log10,
    "math.log1p": torch.log1p,
    "math.log2": torch.log2,
    "math.roundeven": torch.round,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.sinh": torch.sinh,
    "math.sqrt": torch.sqrt,
    "math.tan": torch.tan,
    "math.tanh": torch.tanh,
    "math.trunc": torch.trunc,
}

BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "math.atan2": torch.atan2,
    "math.copysign": torch.copysign,
    "math.powf": torch.pow,
    "flex.fmod": torch.fmod,
}

EXTREMA = ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf")
"""Which zero these choose is not specified."""


def same(got: Tensor, expected: Tensor) -> None:
    """Equal to the last bit but for NaNs' payloads."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    number = ~expected.isnan()
    assert got[number].signbit().equal(expected[number].signbit())


def in_f32(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """What narrow types are computed as."""
    if args[0].dtype in (torch.bfloat16, torch.float16):
        return function(*(a.float() for a in args)).to(args[0].dtype)
    return function(*args)


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary_op_agrees_with_torch(name: str, type_: str):
    x = torch.tensor(VALUES, dtype=DTYPES[type_])
    got = run_scalar(f"%r = {name} %a : {type_}", type_, type_, x)
    same(got, in_f32(UNARY[name], x))


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary_op_agrees_with_torch(name: str, type_: str):
    x = torch.tensor(VALUES, dtype=DTYPES[type_])
    code = f"%r = {name} %a, %b : {type_}"
    got = run_scalar(code, f"{type_}, {type_}", type_, x[:, None], x)
    expected = in_f32(BINARY[name], x[:, None], x)
    if name in EXTREMA:
        got, expected = got + 0.0, expected + 0.0
    same(got, expected)


def test_maximum_keeps_nan_and_maxnum_drops_it():
    def run(name: str) -> float:
        code = f"%r = arith.{name} %a, %b : f32"
        return run_scalar(code, "f32, f32", "f32", NAN, 1.0).item()

    assert math.isnan(run("maximumf"))
    assert math.isnan(run("minimumf"))
    assert run("maxnumf") == 1.0
    assert run("minnumf") == 1.0


def test_round_is_half_away_from_zero():
    below_half = torch.tensor(0.5).nextafter(torch.tensor(0.0)).item()
    x = torch.tensor([0.5, -0.5, 1.5, 2.5, -2.5, below_half, -0.0, 2.0**23 + 1, INF])
    got = run_scalar("%r = math.round %a : f32", "f32", "f32", x)
    same(got, torch.tensor([1.0, -1, 2, 3, -3, 0, -0.0, 2.0**23 + 1, INF]))


def test_cbrt_and_fpowi():
    x = torch.tensor([-8.0, 27.0, 0.0])
    got = run_scalar("%r = math.cbrt %a : f32", "f32", "f32", x)
    torch.testing.assert_close(got, torch.tensor([-2.0, 3.0, 0.0]))
    code = "%r = math.fpowi %a, %b : f32, i32"
    assert run_scalar(code, "f32, i32", "f32", -2.0, -3).item() == -0.125


def test_fma_rounds_once():
    a = 1 + 2.0**-23
    c = -(1 + 2.0**-22)
    got = run_scalar("%r = math.fma %a, %b, %c : f32", "f32, f32, f32", "f32", a, a, c)
    assert got.item() == 2.0**-46


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16"])
def test_fma_is_exact_but_for_one_rounding(name: str):
    dtype = DTYPES[name]
    a, b = torch.randn(2, 200, dtype=torch.float64).to(dtype)
    # What cancels most of the product shows its last bits.
    c = (-a.double() * b.double() * torch.linspace(0, 1, 200)).to(dtype)
    got = run_scalar(
        f"%r = math.fma %a, %b, %c : {name}", ", ".join([name] * 3), name, a, b, c
    )
    above = torch.nextafter(got, torch.full_like(got, INF)).tolist()
    below = torch.nextafter(got, torch.full_like(got, -INF)).tolist()
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in triples]
    for want, *near in zip(exact, got.tolist(), above, below, strict=True):
        errors = [abs(Fraction(n) - want) for n in near]
        assert errors[0] == min(errors)


def test_fma_of_zeros_and_infinities():
    code = "%r = math.fma %a, %b, %c : f64"
    for a, b, c in [(-0.0, 1.0, -0.0), (-0.0, 1.0, 0.0), (1e300, 1e300, 1.0)]:
        got = run_scalar(code, "f64, f64, f64", "f64", a, b, c).item()
        assert math.copysign(1, got) == math.copysign(1, a * b + c)
        assert got == a * b + c


ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda x, y: x == y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "ne": lambda x, y: x != y,
}


@pytest.mark.parametrize("unordered", [False, True], ids=["ordered", "unordered"])
@pytest.mark.parametrize("name", ORDERED)
def test_cmpf_with_nan(name: str, unordered: bool):
    values = [NAN, -1.0, 0.0, 1.0, INF]
    x = torch.tensor(values)
    code = f"%r = arith.cmpf {'u' if unordered else 'o'}{name}, %a, %b : f32"
    got = run_scalar(code, "f32, f32", "i1", x[:, None], x)
    assert got.tolist() == [
        [
            unordered if math.isnan(a) or math.isnan(b) else ORDERED[name](a, b)
            for b in values
        ]
        for a in values
    ]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("false", [False, False]),
        ("ord", [False, True]),
        ("uno", [True, False]),
        ("true", [True, True]),
    ],
)
def test_cmpf_of_order_alone(predicate: str, expected: list[bool]):
    code = f"%r = arith.cmpf {predicate}, %a, %b : f32"
    x = torch.tensor([NAN, 1.0])
    assert run_scalar(code, "f32, f32", "i1", x, 1.0).tolist() == expected


@pytest.mark.parametrize(
    ("op", "source", "result", "values", "expected"),
    [
        ("extf", "bf16", "f32", [1.5, -INF], [1.5, -INF]),
        ("truncf", "f32", "bf16", [1 + 2.0**-8, 1 + 3 * 2.0**-8], [1.0, 1 + 2.0**-6]),
        ("truncf", "f64", "f16", [1e6, 0.5], [INF, 0.5]),
        ("fptosi", "f32", "i32", [-1.9, 1.9], [-1, 1]),
        ("fptosi", "f32", "i8", [-128.0, 127.9], [-128, 127]),
        ("fptoui", "f32", "i8", [255.9, 1.0], [-1, 1]),
        ("fptoui", "f64", "i64", [2.0**63, 5.9], [-(2**63), 5]),
        ("fptoui", "f32", "i1", [0.9, 1.0], [False, True]),
        ("bitcast", "f32", "i32", [1.0, -0.0], [0x3F800000, -(2**31)]),
    ],
)
def test_casts(op: str, source: str, result: str, values: list, expected: list):
    x = torch.tensor(values, dtype=DTYPES[source])
    code = f"%r = arith.{op} %a : {source} to {result}"
    assert run_scalar(code, source, result, x).tolist() == expected


def test_select_broadcasts():
    cond = torch.tensor([[True], [False]])
    got = run_scalar(
        "%r = arith.select %a, %b, %c : f32",
        "i1, f32, f32",
        "f32",
        cond,
        torch.arange(3.0),
        -1.0,
    )
    assert got.tolist() == [[0.0, 1.0, 2.0], [-1.0, -1.0, -1.0]]


@pytest.mark.parametrize("op", ["maximumf", "minimumf"])
@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("", (0.5, 0.5)),
        (' {flex.ties = "lhs"}', (1.0, 0.0)),
        (' {flex.ties = "rhs"}', (0.0, 1.0)),
    ],
    ids=["halves", "lhs", "rhs"],
)
def test_whose_derivative_equal_numbers_have(op: str, ties: str, expected: tuple):
    a, b = (torch.tensor([2.0], requires_grad=True) for _ in range(2))
    got = run_scalar(f"%r = arith.{op} %a, %b{ties} : f32", "f32, f32", "f32", a, b)
    assert got.tolist() == [2.0]
    got.sum().backward()
    assert (a.grad, b.grad) == expected
