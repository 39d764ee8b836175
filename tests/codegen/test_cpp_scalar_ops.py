"""Every scalar op in a kernel, compared with the interpreter on the same region."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.dialects import arith, math
from xdsl.ir import Operation

from flexc.codegen.cpp.scalar_rules import SCALAR_RULES
from flexc.dialects import tile
from flexc.runtime.interpreters import run_region
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import PREPARE, parse, run_passes

DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
N = 64
ODD = 37
"""No multiple of a vector's lanes: the last vector has lanes that do not exist."""
Line = tuple[str, str]
"""The type of a result, and the op that gives it from %x and %y, generic syntax."""

INTEGER_BINARY = (
    "addi subi muli divsi divui floordivsi ceildivsi ceildivui remsi remui minsi maxsi "
    "minui maxui andi ori xori shli shrui shrsi"
)
FLOAT_BINARY = "addf subf mulf divf minimumf maximumf minnumf maxnumf"
FLOAT_UNARY = (
    "absf acos asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 floor log "
    "log10 log1p log2 round roundeven rsqrt sin sinh sqrt tan tanh trunc acosh"
)


def arithmetic(names: str, type_: str, suffix: str = "") -> list[Line]:
    return [
        (type_, f'"arith.{name}"(%x, %y){suffix} : ({type_}, {type_}) -> {type_}')
        for name in names.split()
    ]


def integer_compare(type_: str) -> list[Line]:
    return [
        ("i1", f'"arith.cmpi"(%x, %y) <{{predicate = {p} : i64}}> : ({type_}, {type_})'
         " -> i1")
        for p in range(10)
    ]  # fmt: skip


def integer_lines(type_: str) -> list[Line]:
    casts = [("f32", f'"arith.sitofp"(%x) : ({type_}) -> f32')]
    casts += [("f64", f'"arith.uitofp"(%x) : ({type_}) -> f64')]
    casts += [(type_, f'"math.absi"(%x) : ({type_}) -> {type_}')]
    if type_ == "i32":
        casts += [
            ("i64", '"arith.extsi"(%x) : (i32) -> i64'),
            ("i64", '"arith.extui"(%x) : (i32) -> i64'),
            ("i16", '"arith.trunci"(%x) : (i32) -> i16'),
            ("i1", '"arith.trunci"(%x) : (i32) -> i1'),
            ("f32", '"arith.bitcast"(%x) : (i32) -> f32'),
            ("i32", '"arith.select"(%true, %x, %y) : (i1, i32, i32) -> i32'),
        ]
    return arithmetic(INTEGER_BINARY, type_) + integer_compare(type_) + casts


def float_lines(type_: str) -> list[Line]:
    fast = " <{fastmath = #arith.fastmath<none>}>"
    unary = [
        (type_, f'"math.{name}"(%x){fast} : ({type_}) -> {type_}')
        for name in FLOAT_UNARY.split()
    ]
    binary = [
        (type_, f'"math.{name}"(%x, %y){fast} : ({type_}, {type_}) -> {type_}')
        for name in ("atan2", "copysign", "powf")
    ]
    compare = [
        ("i1", f'"arith.cmpf"(%x, %y) <{{predicate = {p} : i64, '
         f'fastmath = #arith.fastmath<none>}}> : ({type_}, {type_}) -> i1')
        for p in range(16)
    ]  # fmt: skip
    other = [
        (type_, f'"arith.negf"(%x){fast} : ({type_}) -> {type_}'),
        (type_, f'"flex.fmod"(%x, %y) : ({type_}, {type_}) -> {type_}'),
        (type_, f'"math.fma"(%x, %y, %x){fast} : ({type_}, {type_}, {type_}) -> '
         f"{type_}"),
        ("i32", f'"arith.fptosi"(%x) : ({type_}) -> i32'),
    ]  # fmt: skip
    casts = {
        "f16": [("f32", '"arith.extf"(%x) : (f16) -> f32')],
        "bf16": [("f64", '"arith.extf"(%x) : (bf16) -> f64')],
        "f32": [("bf16", '"arith.truncf"(%x) : (f32) -> bf16')],
        "f64": [("f32", '"arith.truncf"(%x) : (f64) -> f32')],
    }
    arith_lines = arithmetic(FLOAT_BINARY, type_, fast)
    return arith_lines + unary + binary + compare + other + casts[type_]


def bool_lines() -> list[Line]:
    casts = [
        ("i32", '"arith.extsi"(%x) : (i1) -> i32'),
        ("i32", '"arith.extui"(%x) : (i1) -> i32'),
        ("f32", '"arith.sitofp"(%x) : (i1) -> f32'),
        ("f32", '"arith.uitofp"(%x) : (i1) -> f32'),
        ("i1", '"arith.select"(%x, %y, %x) : (i1, i1, i1) -> i1'),
    ]
    compare = integer_compare("i1")
    return arithmetic("addi subi muli andi ori xori", "i1") + compare + casts


def lines_of(type_: str) -> list[Line]:
    if type_ == "i1":
        return bool_lines()
    return float_lines(type_) if "f" in type_ else integer_lines(type_)


def kernel_text(
    type_: str, lines: Sequence[Line], n: int = N, vector_bytes: int = 0
) -> str:
    """A kernel of one map with a result for each line, all of which it stores."""
    data = f"tensor<1x1x1x{n}x{type_}>"
    wide = f"attributes {{vector_bytes = {vector_bytes} : i32}}" if vector_bytes else ""
    count = len(lines)
    outs = "".join(
        f", %out{i} : memref<1x1x1x{n}x{t}> #tile.param<argument {i + 2}>"
        for i, (t, _) in enumerate(lines)
    )
    body = "\n".join(f"%r{i} = {text}" for i, (_, text) in enumerate(lines))
    results = ", ".join(f"%r{i}" for i in range(count))
    types = ", ".join(t for t, _ in lines)
    tiles = ", ".join(f"!tile.tile<{n}x{t}>" for t, _ in lines)
    loads = "\n".join(
        f"%{v} = tile.load_strided %{a}[%s0] strides [%s1] extents [%n] : {data} "
        f"-> !tile.tile<{n}x{type_}>"
        for v, a in (("tx", "a"), ("ty", "b"))
    )
    stores = "\n".join(
        f"tile.store_strided %m#{i}, %out{i}[%s0] strides [%s1] extents [%n] : "
        f"!tile.tile<{n}x{t}>, memref<1x1x1x{n}x{t}>"
        for i, (t, _) in enumerate(lines)
    )
    return f"""
tile.kernel @scalars(%a : {data} #tile.param<argument 0>,
    %b : {data} #tile.param<argument 1>{outs})
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {wide} {{
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %n = arith.constant {n} : i32
  {loads}
  %m:{count} = tile.map(%x : {type_} = %tx [0] : !tile.tile<{n}x{type_}>,
      %y : {type_} = %ty [0] : !tile.tile<{n}x{type_}>) {{
    %true = arith.constant true
    {body}
    flex.yield {results} : {types}
  }} -> {tiles}
  {stores}
  tile.return
}}
"""


def values(type_: str) -> tuple[Tensor, Tensor]:
    """Ordinary numbers and edges; divisors are not 0."""
    dtype = DTYPES[type_]
    if type_ == "i1":
        return torch.rand(N) < 0.5, torch.rand(N) < 0.5
    if dtype.is_floating_point:
        edges = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 0.5, 2.5]
        x = torch.cat([torch.tensor(edges), torch.linspace(-3, 3, N - len(edges))])
        return x.to(dtype), torch.randn(N).roll(5).to(dtype)
    info = torch.iinfo(dtype)
    edges = [info.min, info.max, -1, 0, 1, -7, 7]
    x = torch.tensor(edges + torch.randint(-99, 99, (N - len(edges),)).tolist())
    y = torch.randint(1, 9, (N,)) * (1 - 2 * (torch.arange(N) % 2))
    y[:2], y[2:9] = -1, torch.tensor([info.bits, info.bits - 1, -1, 100, 3, 2, 1])
    return x.to(dtype), y.to(dtype)


def check(type_: str, lines: Sequence[Line], n: int = N, vector_bytes: int = 0) -> None:
    ctx, module = parse(kernel_text(type_, lines, n, vector_bytes))
    (region,) = (op.body for op in module.walk() if isinstance(op, tile.MapOp))
    x, y = (v[:n] for v in values(type_))
    want = run_region(region, [x, y])
    got = [torch.empty(1, 1, 1, n, dtype=DTYPES[t]) for t, _ in lines]
    data = [v.reshape(1, 1, 1, n) for v in (x, y)]
    spec = run_passes(ctx, module, PREPARE)
    Kernel(spec)(data[0], [*data, *got])
    tolerance = {"f16": 2e-3, "bf16": 1e-2, "f64": 1e-13}.get(type_, 2e-6)
    for (t, text), ours, theirs in zip(lines, got, want, strict=True):
        exact = not DTYPES[t].is_floating_point
        keep = x.abs() < 1e9 if "fptosi" in text else torch.ones(n, dtype=torch.bool)
        torch.testing.assert_close(
            ours.reshape(n)[keep],
            theirs.expand(n)[keep],
            atol=0 if exact else tolerance,
            rtol=0 if exact else tolerance,
            equal_nan=True,
            msg=lambda m, text=text: f"{text}: {m}",
        )


@pytest.mark.parametrize("type_", DTYPES)
def test_same_as_the_interpreter(type_: str) -> None:
    check(type_, lines_of(type_))


@pytest.mark.parametrize(
    "vector_bytes", [16, pytest.param(32, marks=pytest.mark.slow), 64]
)
@pytest.mark.parametrize("type_", DTYPES)
def test_vectors_of_any_width(type_: str, vector_bytes: int) -> None:
    check(type_, lines_of(type_), ODD, vector_bytes)


@pytest.mark.parametrize("type_", [t for t in DTYPES if t not in ("i64", "f64")])
def test_vectors_without_wide_numbers(type_: str) -> None:
    """What is computed with 64 bits leaves other maps fewer lanes."""
    lines = [
        line for line in lines_of(type_) if "64" not in line[1].rsplit(" : ", 1)[1]
    ]
    check(type_, lines, ODD)


def test_every_op_has_a_rule() -> None:
    """All scalar ops of arith and math but those that no frontend makes."""
    absent = {
        arith.ConstantOp,
        arith.AddUIExtendedOp,
        arith.MulSIExtendedOp,
        arith.MulUIExtendedOp,
        math.CountLeadingZerosOp,
        math.CountTrailingZerosOp,
        math.CtPopOp,
        math.IPowIOp,
    }
    ops = {*arith.Arith.operations, *math.Math.operations}
    missing: set[type[Operation]] = ops - set(SCALAR_RULES) - absent
    assert not missing
