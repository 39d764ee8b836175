"""Every expanded op against fp64 or exact results, held to its stated bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import (
    ModuleOp,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Attribute, Block, Operation, Region

from flexc.codegen.triton.scalar_rules import RULES
from flexc.dialects import flex, tile
from flexc.passes.scalar.math_expansions import EXPANSIONS
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import Tanh
from flexc.passes.tile.scalar_math import TileExpandMathPass
from flexc.runtime.interpreters import make_interpreter

INF, NAN = math.inf, math.nan
TINY, HUGE = 1.401298464324817e-45, 3.4028234663852886e38

SPECIAL = (0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0)
SPECIAL += (TINY, -TINY, 1e-40, HUGE, -HUGE, 1 - 2**-24, 1 + 2**-23, -1 + 2**-24)
SPECIAL += (1e30, 1e-30, 16777215.0, 16777218.0, -5.0, 2.5, 1e10, 2.0**-126)


def region_of(
    op: type[Operation], types: Sequence[Attribute], result: Attribute | None = None
) -> Region:
    """A region that applies one op to its arguments."""
    block = Block(arg_types=types)
    code = ScalarCode(block)
    build: type = op
    extra = [] if result is None else [result]
    code.yield_(code.insert(build(*block.args, *extra)))
    return Region(block)


def expanded(region: Region, tanh: Tanh = "exact") -> Region:
    """The region after the pass."""
    module = ModuleOp([test_dialect.TestOp(regions=[region.clone()])])
    TileExpandMathPass(tanh=tanh).apply(Context(), module)
    module.verify()
    (holder,) = module.ops
    return holder.regions[0]


@register_impls
class FusedMultiplyAdd(InterpreterFunctions):
    """`math.fma` rounded once in f64 too."""

    @impl(math_dialect.FmaOp)
    def run(
        self, interpreter: Interpreter, op: math_dialect.FmaOp, args: PythonValues
    ) -> PythonValues:
        if args[0].dtype != torch.float64:
            a, b, c = (x.double() for x in args)
            return ((a * b + c).to(args[0].dtype),)
        a, b, c = torch.broadcast_tensors(*args)
        rows = zip(*(x.flatten().tolist() for x in (a, b, c)), strict=True)
        flat = torch.tensor([_fused(*row) for row in rows], dtype=torch.float64)
        return (flat.reshape(a.shape),)


def _fused(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return INF if exact > 0 else -INF


def run(region: Region, *args: Tensor) -> Tensor:
    interpreter = make_interpreter()
    interpreter.register_implementations(FusedMultiplyAdd(), override=True)
    return interpreter.run_ssacfg_region(region, args)[0]


def error_f32(got: Tensor, want: Tensor) -> Tensor:
    """The error of f32 results in ulp; 0 where both are infinite or NaN."""
    exponent = want.abs().clamp(min=2.0**-126).log2().floor()
    error = (got.double() - want).abs() / torch.exp2(exponent - 23)
    rounded = want.float()
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    error = torch.where(same, error.nan_to_num(0.0, 0.0), error)
    # At the very end of the range, overflow is a matter of rounding.
    error = torch.where(got.isinf() & (want.abs() >= HUGE), 0.0, error)
    return error.nan_to_num(INF)


def assert_f32(
    got: Tensor, want: Tensor, bound: float, where: Sequence[Tensor]
) -> None:
    error = error_f32(got, want)
    signs = (got.signbit() != want.signbit()) & ~want.isnan()
    worst = int(torch.where(signs, INF, error).argmax())
    at = [x.expand(error.shape).flatten()[worst].item() for x in where]
    values = (got.flatten()[worst].item(), want.flatten()[worst].item())
    assert not signs.any(), (at, values)
    assert error.flatten()[worst] <= bound, (at, values)


def dense_inputs() -> Tensor:
    """f32 numbers of all sizes, and those where functions are not smooth."""
    sizes = (
        torch.logspace(-45, 38.53, 40_001, dtype=torch.float64),
        torch.linspace(0, 10, 40_001, dtype=torch.float64),
        torch.linspace(0, 110, 20_001, dtype=torch.float64),
        1 + torch.logspace(-7, 0, 5_001, dtype=torch.float64),
        1 - torch.logspace(-7, -1, 5_001, dtype=torch.float64),
    )
    x = torch.cat(sizes)
    return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), x, -x]).float()


def cube_root(x: Tensor) -> Tensor:
    return torch.copysign(x.abs() ** (1 / 3), x)


def half_away(x: Tensor) -> Tensor:
    whole = x.abs().floor()
    return torch.copysign(whole + ((x.abs() - whole) >= 0.5), x)


UNARY: dict[type[Operation], tuple[Callable[[Tensor], Tensor], float, float]] = {
    math_dialect.TanhOp: (torch.tanh, 2.0, 3.0),
    math_dialect.ExpM1Op: (torch.expm1, 2.0, 2.0),
    math_dialect.Log1pOp: (torch.log1p, 1.5, 1.5),
    math_dialect.Log10Op: (torch.log10, 2.0, 2.0),
    math_dialect.TanOp: (torch.tan, 2.5, 2.5),
    math_dialect.AtanOp: (torch.atan, 2.5, 1.5),
    math_dialect.AsinOp: (torch.asin, 3.5, 3.5),
    math_dialect.AcosOp: (torch.acos, 3.5, 3.5),
    math_dialect.SinhOp: (torch.sinh, 2.5, 2.5),
    math_dialect.CoshOp: (torch.cosh, 2.0, 2.0),
    math_dialect.AsinhOp: (torch.asinh, 2.5, 2.5),
    math_dialect.AcoshOp: (torch.acosh, 2.5, 2.5),
    math_dialect.AtanhOp: (torch.atanh, 2.5, 2.5),
    math_dialect.CbrtOp: (cube_root, 1.0, 1.0),
    math_dialect.TruncOp: (torch.trunc, 0.0, 0.0),
    math_dialect.RoundEvenOp: (torch.round, 0.0, 0.0),
    math_dialect.RoundOp: (half_away, 0.0, 0.0),
}
"""The function in fp64, the bound in f32 and the bound in f64."""

BINARY: dict[type[Operation], tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    math_dialect.PowFOp: (torch.pow, 1.5),
    math_dialect.Atan2Op: (torch.atan2, 3.0),
    math_dialect.CopySignOp: (torch.copysign, 0.0),
    flex.FmodOp: (torch.fmod, 0.0),
}


def op_id(op: type[Operation]) -> str:
    return op.name


def pairs() -> tuple[Tensor, Tensor]:
    rng = random.Random(0)
    numbers = [rng.uniform(-10, 10) for _ in range(150)]
    numbers += [rng.choice([-1, 1]) * 2 ** rng.uniform(-149, 128) for _ in range(150)]
    numbers += [1 + rng.uniform(-1, 1) * 2 ** -rng.uniform(0, 20) for _ in range(100)]
    numbers += [float(rng.randint(-200, 200)) for _ in range(60)]
    x = torch.tensor([*SPECIAL, *numbers], dtype=torch.float64).float()
    return x[:, None], x[None, :]


@pytest.mark.parametrize("op", UNARY, ids=op_id)
def test_unary_f32(op: type[Operation]) -> None:
    function, bound, _ = UNARY[op]
    x = dense_inputs()
    got = run(expanded(region_of(op, [f32])), x)
    assert_f32(got, function(x.double()), bound, [x])


@pytest.mark.parametrize("op", BINARY, ids=op_id)
def test_binary_f32(op: type[Operation]) -> None:
    function, bound = BINARY[op]
    x, y = pairs()
    if op is flex.FmodOp:
        x, y = x[::2], y[:, ::2]
    got = run(expanded(region_of(op, [f32, f32])), x, y)
    assert_f32(got, function(x.double(), y.double()), bound, [x, y])


def error_f64(got: float, want: Any) -> float:
    if mpmath.isnan(want) or math.isnan(got):
        return 0.0 if mpmath.isnan(want) and math.isnan(got) else INF
    if math.isinf(got):
        return 0.0 if abs(want) > 1.79e308 and (got > 0) == (want > 0) else INF
    size = abs(want)
    exponent = -1022 if size < 2.0**-1022 else int(mpmath.floor(mpmath.log(size, 2)))
    return float(abs(mpmath.mpf(got) - want) / mpmath.mpf(2) ** (exponent - 52))


def exact(name: str, *args: float) -> Any:
    """A function to 50 digits; NaN where it is not real."""
    with mpmath.workdps(50):
        x, *rest = (mpmath.mpf(a) for a in args)
        if name == "cbrt":
            return mpmath.sign(x) * mpmath.cbrt(abs(x))
        if name == "powf":
            return abs(x) ** rest[0]
        result = getattr(mpmath, name)(x, *rest)
        return mpmath.nan if isinstance(result, mpmath.mpc) else result


def doubles() -> list[float]:
    rng = random.Random(1)
    numbers = [rng.uniform(-12, 12) for _ in range(40)]
    numbers += [rng.uniform(-1, 1) for _ in range(60)]
    numbers += [rng.choice([-1, 1]) * 2 ** rng.uniform(-60, 60) for _ in range(40)]
    numbers += [1 + rng.uniform(-1, 1) * 2 ** -rng.uniform(0, 50) for _ in range(30)]
    return numbers + [rng.uniform(-720, 720) for _ in range(30)]


SMOOTH = [op for op, (_, _, bound) in UNARY.items() if bound]


@pytest.mark.parametrize("op", SMOOTH, ids=op_id)
def test_unary_f64(op: type[Operation]) -> None:
    numbers = doubles()
    args = torch.tensor(numbers, dtype=torch.float64)
    got = run(expanded(region_of(op, [f64])), args)
    name = op.name.removeprefix("math.")
    for x, y in zip(numbers, got.tolist(), strict=True):
        assert error_f64(y, exact(name, x)) <= UNARY[op][2], (x, y)


@pytest.mark.parametrize(
    ("op", "bound"), [(math_dialect.PowFOp, 1.5), (math_dialect.Atan2Op, 3.0)]
)
def test_binary_f64(op: type[Operation], bound: float) -> None:
    rng, numbers = random.Random(2), doubles()
    x = [rng.choice(numbers) for _ in range(300)]
    if op is math_dialect.PowFOp:
        x = [abs(a) for a in x]
    y = [rng.choice(numbers) for _ in x]
    x += [2 ** rng.uniform(-3, 3) for _ in range(100)]
    y += [rng.uniform(-300, 300) for _ in range(100)]
    args = (torch.tensor(v, dtype=torch.float64) for v in (x, y))
    got = run(expanded(region_of(op, [f64, f64])), *args)
    for a, b, c in zip(x, y, got.tolist(), strict=True):
        assert error_f64(c, exact(op.name.removeprefix("math."), a, b)) <= bound


def test_fmod_f64_is_exact_for_quotients_below_two_to_the_104() -> None:
    rng = random.Random(3)
    x = [rng.uniform(-1, 1) * 2 ** rng.uniform(-40, 40) for _ in range(500)]
    y = [rng.uniform(-1, 1) * 2 ** rng.uniform(-40, 40) for _ in range(500)]
    args = [torch.tensor(v, dtype=torch.float64) for v in (x, y)]
    got = run(expanded(region_of(flex.FmodOp, [f64, f64])), *args)
    assert torch.equal(got, torch.fmod(*args))


@pytest.mark.parametrize("op", [o for o in UNARY if UNARY[o][1]], ids=op_id)
@pytest.mark.parametrize("type_", [f16, bf16], ids=str)
def test_narrow_types_are_widened(op: type[Operation], type_: Attribute) -> None:
    dtype = torch.float16 if type_ == f16 else torch.bfloat16
    x = dense_inputs().to(dtype)
    got = run(expanded(region_of(op, [type_])), x)
    want = UNARY[op][0](x.double()).to(dtype)
    assert torch.equal(got.isnan(), want.isnan())
    # The last bit may differ where f32 results lie on both sides of a tie.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, rtol=eps, atol=1e-7, equal_nan=True)


def test_math_that_triton_has_is_widened_too() -> None:
    region = expanded(region_of(math_dialect.ExpOp, [bf16]))
    kinds = [type(op) for op in region.block.ops]
    narrow = [arith.ExtFOp, math_dialect.ExpOp, arith.TruncFOp, flex.YieldOp]
    assert kinds == narrow


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 4.0])
def test_small_powers_are_products(power: float) -> None:
    block = Block(arg_types=[f32])
    code = ScalarCode(block)
    exponent = code.const(power, f32)
    code.yield_(code.insert(math_dialect.PowFOp(block.args[0], exponent)))
    region = expanded(Region(block))
    assert {type(op) for op in region.block.ops} <= {
        arith.ConstantOp,
        arith.MulfOp,
        flex.YieldOp,
    }
    x = dense_inputs()
    assert_f32(run(region, x), torch.pow(x.double(), power), 2.0, [x])


EXPONENTS = (0, 1, -1, 2, 3, -3, 7, -8, 100, -101, 2**31 - 1, -(2**31), 2**24 + 1)
EXPONENTS += (-(2**24) - 1, 12345678, 65535, 65536)


def test_integer_powers_of_floats() -> None:
    x = pairs()[0]
    n = torch.tensor(EXPONENTS, dtype=torch.int32)[None]
    got = run(expanded(region_of(math_dialect.FPowIOp, [f32, i32])), x, n)
    assert_f32(got, torch.pow(x.double(), n.double()), 1.5, [x, n])


@pytest.mark.parametrize("n", [-4, -1, 0, 1, 2, 3, 4, 5])
def test_constant_integer_powers_of_floats(n: int) -> None:
    block = Block(arg_types=[f32])
    code = ScalarCode(block)
    exponent = code.const(n, i32)
    code.yield_(code.insert(math_dialect.FPowIOp(block.args[0], exponent)))
    x = pairs()[0]
    # 1 / x**n overflows before x**-n does: leave such sizes out.
    x = x[(x.abs() < 1e9) & (x.abs() > 1e-9) | (x == 0)]
    got = run(expanded(Region(block)), x)
    assert_f32(got, torch.pow(x.double(), float(n)), 3.0, [x])


def test_tanh_by_hardware_is_one_op() -> None:
    region = expanded(region_of(math_dialect.TanhOp, [f32]), "nvidia")
    kinds = [type(op) for op in region.block.ops]
    assert kinds == [tile.TanhApproxOp, flex.YieldOp]
    x = dense_inputs()
    torch.testing.assert_close(run(region, x), x.tanh(), equal_nan=True)
    wide = expanded(region_of(math_dialect.TanhOp, [f64]), "nvidia")
    assert not any(isinstance(op, tile.TanhApproxOp) for op in wide.block.ops)


def test_tanh_by_exp2_has_a_small_absolute_error() -> None:
    region = expanded(region_of(math_dialect.TanhOp, [f32]), "exp2")
    x = dense_inputs()
    got, want = run(region, x).double(), x.double().tanh()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-7, equal_nan=True)


# Integers.

INTS = {i8: torch.int8, i16: torch.int16, i32: torch.int32, i64: torch.int64}

DIVISIONS = (arith.FloorDivSIOp, arith.CeilDivSIOp, arith.CeilDivUIOp)
UNSIGNED = (arith.MinUIOp, arith.MaxUIOp)
COUNTS = (
    math_dialect.CtPopOp,
    math_dialect.CountLeadingZerosOp,
    math_dialect.CountTrailingZerosOp,
)


def integers(type_: Attribute) -> Tensor:
    dtype = INTS[type_]
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    small = list(range(-20, 21))
    large = [low, low + 1, low // 2, low // 3, high // 3, high // 2, high - 1, high]
    return torch.tensor(small + large, dtype=dtype)


@pytest.mark.parametrize("op", [*DIVISIONS, *UNSIGNED], ids=op_id)
@pytest.mark.parametrize("type_", INTS, ids=str)
def test_integer_pairs(op: type[Operation], type_: Attribute) -> None:
    x = integers(type_)
    y = x[x != 0] if op in DIVISIONS else x
    region = region_of(op, [type_, type_])
    args = (x[:, None], y[None, :])
    assert torch.equal(run(expanded(region), *args), run(region, *args))


@pytest.mark.parametrize("op", COUNTS, ids=op_id)
@pytest.mark.parametrize("type_", INTS, ids=str)
def test_bit_counts(op: type[Operation], type_: Attribute) -> None:
    x = integers(type_)
    region = region_of(op, [type_])
    assert torch.equal(run(expanded(region), x), run(region, x))


@pytest.mark.parametrize("type_", INTS, ids=str)
def test_integer_powers(type_: Attribute) -> None:
    x = integers(type_)
    region = region_of(math_dialect.IPowIOp, [type_, type_])
    got = run(expanded(region), x[:, None], x[None, :])
    bits = x.dtype.itemsize * 8
    for i, a in enumerate(x.tolist()):
        for j, n in enumerate(x.tolist()):
            if n >= 0:
                want = pow(a, n, 1 << bits)
                want -= (want >> (bits - 1)) << bits
            elif abs(a) == 1:
                want = a if n % 2 else 1
            else:
                want = 0
            assert got[i, j].item() == want, (a, n)


@pytest.mark.parametrize("type_", [i1, *INTS], ids=str)
@pytest.mark.parametrize("source", [f32, f64], ids=str)
def test_conversion_to_unsigned(source: Attribute, type_: Attribute) -> None:
    bits = 1 if type_ == i1 else INTS[type_].itemsize * 8
    sizes = [0.0, -0.0, 0.5, -0.5, 1.0, 1.75, 2.0, 3.5, 100.0, 127.5, 128.0, 255.0]
    sizes += [2.0**k for k in range(64)] + [2.0**k + 2.0 ** (k - 20) for k in range(64)]
    x = torch.tensor([s for s in sizes if s < 2.0**bits])
    x = x.to(torch.float32 if source == f32 else torch.float64)
    region = region_of(arith.FPToUIOp, [source], type_)
    assert torch.equal(run(expanded(region), x), run(region, x))


def test_all_expansions_are_spelled_by_triton() -> None:
    spelled = {*RULES, arith.ConstantOp, flex.YieldOp}
    for op in EXPANSIONS:
        for type_ in (f32, f64, i32, i64):
            is_float = type_ in (f32, f64)
            if (op.name in INTEGER_NAMES) == is_float:
                continue
            if op is math_dialect.FPowIOp:
                types: list[Attribute] = [type_, i32]
            else:
                types = [type_] * (2 if op.name in TWO_OPERANDS else 1)
            region = expanded(region_of(op, types))
            assert {type(o) for o in region.block.ops} <= spelled


INTEGER_NAMES = {o.name for o in (*DIVISIONS, *UNSIGNED, *COUNTS, math_dialect.IPowIOp)}
TWO_OPERANDS = {o.name for o in (*DIVISIONS, *UNSIGNED, *BINARY, math_dialect.IPowIOp)}


def test_results_keep_names_and_locations() -> None:
    region = region_of(math_dialect.TanhOp, [f32])
    (tanh, _) = region.block.ops
    tanh.results[0].name_hint = "capped"
    after = expanded(region)
    last = after.block.last_op
    assert last is not None
    assert last.operands[0].name_hint == "capped"
    assert {op.location for op in after.block.ops} == {tanh.location}
