"""The support header's functions of numbers and of vectors, called one by one."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flexc.runtime.kernels.cpp_compiler import find_compiler

NEAR = ("near_exp2", "near_tanh")
UNARY = ("exp2", "exp", "expm1", "log", "log2", "log1p", "tanh", "erf", *NEAR)
WIDTHS = (0, 16, 32, 64)
"""Bytes of a vector; 0 for numbers."""
SIGNED = ("divsi", "remsi", "floordivsi", "ceildivsi", "min", "max", "shrsi")
UNSIGNED = ("divui", "remui", "minui", "maxui", "shli", "shrui")
INTEGER = (*SIGNED, *UNSIGNED)
SMALLEST = 2.0**-125


VECTOR_LOOP = "for (int64_t i = 0; i + lanes<{0}> <= n; i += lanes<{0}>)"


def load(type_: str, name: str) -> str:
    return f"load_vector<lanes<{type_}>>({name} + i)"


@pytest.fixture(scope="module", params=WIDTHS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """A shared object with a loop around each function, of one width."""
    width: int = request.param
    folder: Path = tmp_path_factory.mktemp("math")
    source = folder / "math.cpp"
    lines = [f"#define FLEXC_VECTOR_BYTES {width or 16}"]
    lines += ['#include "flexc_support.h"', "using namespace flexc;"]
    lines += vector_loops() if width else number_loops()
    source.write_text("\n".join(lines))
    find_compiler().build(source, output=folder / "math.so")
    return ctypes.CDLL(str(folder / "math.so"))


def vector_loops() -> list[str]:
    """The same functions of vectors. What is left of a vector is done by numbers."""
    lines: list[str] = []
    x = load("float", "x")
    for name in UNARY:
        lines += [
            f"FLEXC_KERNEL void {name}_f32(const float* x, float* y, int64_t n) {{",
            f"{VECTOR_LOOP.format('float')} store_vector(y + i, {name}({x}));",
            f"for (int64_t i = n / lanes<float> * lanes<float>; i < n; ++i) y[i] = "
            f"{name}(x[i]); }}",
        ]
    for name in INTEGER:
        for width in (8, 32, 64):
            t, lanes = f"int{width}_t", "double" if width == 64 else "float"
            a, b = load(lanes, "x"), load(lanes, "y")
            lines += [
                f"FLEXC_KERNEL void {name}_i{width}("
                f"const {t}* x, const {t}* y, {t}* z, int64_t n) {{",
                f"{VECTOR_LOOP.format(lanes)} store_vector(z + i, {name}({a}, {b}));",
                f"for (int64_t i = n / lanes<{lanes}> * lanes<{lanes}>; i < n; ++i) "
                f"z[i] = {name}(x[i], y[i]); }}",
            ]
    for name in ("half", "bfloat16"):
        loop, a = VECTOR_LOOP.format("float"), load("float", "x")
        rest = "for (int64_t i = n / lanes<float> * lanes<float>; i < n; ++i)"
        lines += [
            f"FLEXC_KERNEL void to_{name}(const float* x, {name}* y, int64_t n) {{",
            f"{loop} store_vector(y + i, convert<{name}>({a}));",
            f"{rest} y[i] = {name}(x[i]); }}",
            f"FLEXC_KERNEL void from_{name}(const {name}* x, float* y, int64_t n) {{",
            f"{loop} store_vector(y + i, convert<float>({a}));",
            f"{rest} y[i] = float(x[i]); }}",
        ]
    return [
        *lines,
        "FLEXC_KERNEL void to_i32(const float* x, int32_t* y, int64_t n) {",
        "float some[lanes<float>] = {}; int32_t to[lanes<float>];",
        "for (int64_t i = 0; i < n; ++i) { some[0] = x[i];",
        "store_vector(to, fptosi<int32_t>(load_vector(some))); y[i] = to[0]; } }",
    ]


def number_loops() -> list[str]:
    lines: list[str] = []
    for name in UNARY:
        lines += [
            f"FLEXC_KERNEL void {name}_f32(const float* x, float* y, int64_t n) {{",
            "#pragma omp simd",
            f"for (int64_t i = 0; i < n; ++i) y[i] = {name}(x[i]); }}",
        ]
    for name in INTEGER:
        for width in (8, 32, 64):
            t = f"int{width}_t"
            lines += [
                f"FLEXC_KERNEL void {name}_i{width}("
                f"const {t}* x, const {t}* y, {t}* z, int64_t n) {{",
                f"for (int64_t i = 0; i < n; ++i) z[i] = {name}(x[i], y[i]); }}",
            ]
    for name in ("half", "bfloat16"):
        lines += [
            f"FLEXC_KERNEL void to_{name}(const float* x, {name}* y, int64_t n) {{",
            f"for (int64_t i = 0; i < n; ++i) y[i] = {name}(x[i]); }}",
            f"FLEXC_KERNEL void from_{name}(const {name}* x, float* y, int64_t n) {{",
            "for (int64_t i = 0; i < n; ++i) y[i] = float(x[i]); }",
        ]
    return [
        *lines,
        "FLEXC_KERNEL void to_i32(const float* x, int32_t* y, int64_t n) {",
        "for (int64_t i = 0; i < n; ++i) y[i] = fptosi<int32_t>(x[i]); }",
    ]


def apply(library: ctypes.CDLL, name: str, *tensors: Tensor) -> None:
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    getattr(library, name)(*pointers, ctypes.c_int64(tensors[0].numel()))


def all_kinds_of_floats() -> Tensor:
    """Bit patterns spread over all floats, and the special ones."""
    patterns = torch.arange(-(2**31), 2**31, 4099, dtype=torch.int64).to(torch.int32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0])
    near = torch.linspace(-130, 130, 400_000)
    return torch.cat([patterns.view(torch.float32), special, near, near * 0.01])


def ulps(got: Tensor, want: Tensor) -> Tensor:
    """Errors in units in the last place of the exact result."""
    exponent = torch.frexp(want).exponent.clamp(min=-125) - 24
    return (got.double() - want).abs() / torch.ldexp(torch.ones_like(want), exponent)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("exp2", 1.2),
        ("exp", 1.2),
        ("expm1", 2.0),
        ("log", 1.0),
        ("log2", 2.0),
        ("log1p", 3.0),
        ("tanh", 3.0),
        ("erf", 2.0),
    ],
)
def test_error(library: ctypes.CDLL, name: str, limit: float) -> None:
    x = all_kinds_of_floats()
    got = torch.empty_like(x)
    apply(library, f"{name}_f32", x, got)
    want = getattr(torch, name)(x.double())
    rounded = want.float()
    if name in ("exp", "exp2"):
        tiny = want < SMALLEST * 1.01
        assert (got[tiny] <= SMALLEST * 1.01).all()
        got, want, rounded = got[~tiny], want[~tiny], rounded[~tiny]
    finite = rounded.isfinite()
    torch.testing.assert_close(
        got[~finite], rounded[~finite], atol=0, rtol=0, equal_nan=True
    )
    worst = ulps(got[finite], want[finite]).max().item()
    assert worst <= limit, f"{name}: {worst} units in the last place"


@pytest.mark.parametrize("name", NEAR)
def test_error_of_functions_of_scores(library: ctypes.CDLL, name: str) -> None:
    x = all_kinds_of_floats()
    got = torch.empty_like(x)
    apply(library, f"{name}_f32", x, got)
    want = getattr(torch, name.removeprefix("near_"))(x.double())
    close = (got.double() - want).abs() <= 2.0**-18 * want.abs()
    close |= (got.abs() <= 1.01 * SMALLEST) & (want.abs() <= 1.01 * SMALLEST)
    large = (want.float().isinf() & got.isinf()) | (want.isnan() & got.isnan())
    assert (close | large).all()


def test_exp2_of_integers_is_exact(library: ctypes.CDLL) -> None:
    x = torch.arange(-125, 128, dtype=torch.float32)
    got = torch.empty_like(x)
    apply(library, "exp2_f32", x, got)
    assert torch.equal(got, torch.exp2(x.double()).float())


@pytest.mark.parametrize(
    ("name", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16)]
)
def test_16_bit_floats(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    x = all_kinds_of_floats()
    got = torch.empty(x.shape, dtype=dtype)
    apply(library, f"to_{name}", x, got)
    torch.testing.assert_close(got, x.to(dtype), atol=0, rtol=0, equal_nan=True)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    back = torch.empty(every.shape)
    apply(library, f"from_{name}", every, back)
    torch.testing.assert_close(back, every.float(), atol=0, rtol=0, equal_nan=True)


DTYPES = {8: torch.int8, 32: torch.int32, 64: torch.int64}


def edge_pairs(width: int) -> list[tuple[int, int]]:
    top = 1 << (width - 1)
    edges = [-top, 1 - top, -7, -2, -1, 0, 1, 2, 3, 7, width - 1, width, top - 1]
    return [(a, b) for a in edges for b in edges]


def wrap(value: int, width: int) -> int:
    half = 1 << (width - 1)
    return (value + half) % (2 * half) - half


def expected(name: str, a: int, b: int, width: int) -> int | None:
    """Python's answer; None where any number will do."""
    mask = (1 << width) - 1
    ua, ub = a & mask, b & mask
    if name in ("min", "max"):
        return min(a, b) if name == "min" else max(a, b)
    if name in ("minui", "maxui"):
        return wrap(min(ua, ub) if name == "minui" else max(ua, ub), width)
    if name.startswith("sh"):
        amount = min(ub, width)
        shifted = {"shli": ua << amount, "shrui": ua >> amount, "shrsi": a >> amount}
        return wrap(shifted[name], width)
    if b == 0:
        return None
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    results = {
        "divsi": quotient,
        "remsi": a - quotient * b,
        "floordivsi": a // b,
        "ceildivsi": -(-a // b),
        "divui": ua // ub,
        "remui": ua % ub,
    }
    return wrap(results[name], width)


@pytest.mark.parametrize("width", list(DTYPES))
@pytest.mark.parametrize("name", INTEGER)
def test_integers_wrap_and_never_trap(
    library: ctypes.CDLL, name: str, width: int
) -> None:
    pairs = edge_pairs(width)
    x, y = (
        torch.tensor(side, dtype=DTYPES[width]) for side in zip(*pairs, strict=True)
    )
    got = torch.empty_like(x)
    apply(library, f"{name}_i{width}", x, y, got)
    for (a, b), result in zip(pairs, got.tolist(), strict=True):
        want = expected(name, a, b, width)
        assert want is None or result == want, f"{name}({a}, {b})"


def test_float_to_integer_saturates(library: ctypes.CDLL) -> None:
    x = torch.tensor([1.9, -1.9, 3e9, -3e9, torch.inf, -torch.inf, torch.nan])
    got = torch.empty(x.shape, dtype=torch.int32)
    apply(library, "to_i32", x, got)
    top = 2**31
    assert got.tolist() == [1, -1, top - 1, -top, top - 1, -top, 0]
