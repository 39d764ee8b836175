"""Float intervals against machine arithmetic at random points."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flexc.passes.scalar.ranges import float_intervals as floats
from flexc.passes.scalar.ranges import float_values as functions
from flexc.passes.scalar.ranges.float_intervals import (
    ANY,
    F16,
    F32,
    F64,
    ONLY_NAN,
    FloatInterval,
    Format,
    round_down,
)

FORMATS = {"f16": (F16, np.float16), "f32": (F32, np.float32), "f64": (F64, np.float64)}
WIDTHS: dict[Format, Literal[16, 32, 64]] = {F16: 16, F32: 32, F64: 64}

Machine = Callable[..., np.floating]

BINARY: dict[str, tuple[Callable[..., FloatInterval], Machine]] = {
    "add": (floats.add, np.add),
    "subtract": (floats.subtract, np.subtract),
    "multiply": (floats.multiply, np.multiply),
    "divide": (floats.divide, np.divide),
    "minimum": (lambda a, b, _: floats.minimum(a, b), np.minimum),
    "maximum": (lambda a, b, _: floats.maximum(a, b), np.maximum),
    "minimum_number": (lambda a, b, _: floats.minimum_number(a, b), np.fmin),
    "maximum_number": (lambda a, b, _: floats.maximum_number(a, b), np.fmax),
    "copy_sign": (lambda a, b, _: functions.copy_sign(a, b), np.copysign),
    "remainder": (lambda a, b, _: functions.remainder(a, b), np.fmod),
    "power": (functions.power, np.power),
    "divide_by_reciprocal": (floats.divide, lambda x, y: x * (type(x)(1) / y)),
}

UNARY: dict[str, tuple[Callable[..., FloatInterval], Machine]] = {
    "negate": (lambda a, _: floats.negate(a), np.negative),
    "absolute": (lambda a, _: floats.absolute(a), np.abs),
    "square": (floats.square, lambda x: x * x),
    "floor": (functions.whole, np.floor),
    "ceil": (functions.whole, np.ceil),
    "rint": (functions.whole, np.rint),
    "rsqrt": (functions.rsqrt, lambda x: type(x)(1) / np.sqrt(x)),
    "cosh": (functions.cosh, np.cosh),
    "acos": (functions.acos, np.arccos),
    "sin": (functions.wave, np.sin),
    "cos": (functions.wave, np.cos),
    "half": (lambda a, _: floats.rounded(a, F16), np.float16),
}
MACHINES: dict[str, Machine] = {
    "atan": np.arctan, "asin": np.arcsin, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "erf": lambda x: type(x)(math.erf(x)),
}  # fmt: skip
UNARY |= {
    name: (f, MACHINES.get(name) or getattr(np, name))
    for name, f in functions.INCREASING.items()
}


def numbers(fmt: Format) -> st.SearchStrategy[float]:
    special = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, fmt.tiny, fmt.largest)
    return st.one_of(
        st.floats(width=WIDTHS[fmt], allow_nan=False),
        st.floats(-100, 100, width=WIDTHS[fmt]),
        st.sampled_from(special),
    )


@st.composite
def members(draw: st.DrawFn, fmt: Format) -> tuple[FloatInterval, float]:
    """An interval, made as the analysis makes them, and a member."""
    lo, x, hi = sorted(draw(st.lists(numbers(fmt), min_size=3, max_size=3)))
    nan = draw(st.booleans())
    interval = floats.round_toward(lo, hi, nan, fmt)
    return interval, math.nan if nan and draw(st.booleans()) else x


def flushed(x: float, fmt: Format) -> float:
    """A machine that knows no subnormal numbers."""
    return 0.0 if abs(x) < fmt.tiny else x


def check(
    op: Callable[..., FloatInterval],
    machine: Machine,
    format_name: str,
    operands: list[tuple[FloatInterval, float]],
) -> None:
    fmt, dtype = FORMATS[format_name]
    result = op(*(interval for interval, _ in operands), fmt)
    points = [x for _, x in operands]
    for args in (points, [flushed(x, fmt) for x in points]):
        with np.errstate(all="ignore"):
            y = float(machine(*(dtype(x) for x in args)))
        assert y in result, f"{y} of {args} not in {result}"
        assert flushed(y, fmt) in result


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
def test_binary(name: str, format_name: str, data: st.DataObject) -> None:
    fmt, _ = FORMATS[format_name]
    operands = [data.draw(members(fmt)), data.draw(members(fmt))]
    # Other reciprocals are an infinity times 0 of their own: see `divide`. Numbers that
    # hypothesis finds in modules make most of f16's so, too many for `assume`.
    has_reciprocal = fmt.tiny <= abs(operands[1][1]) <= 2.0**fmt.greatest
    if name != "divide_by_reciprocal" or has_reciprocal:
        check(*BINARY[name], format_name, operands)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", UNARY)
@given(data=st.data())
def test_unary(name: str, format_name: str, data: st.DataObject) -> None:
    check(*UNARY[name], format_name, [data.draw(members(FORMATS[format_name][0]))])


@given(st.fractions(), st.sampled_from((F16, F32, F64)))
@example(Fraction(65519), F16)
@example(Fraction(-65505), F16)
@example(Fraction(1, 2**30), F16)
def test_round_down_is_the_number_below(exact: Fraction, fmt: Format) -> None:
    dtype = {F16: np.float16, F32: np.float32, F64: np.float64}[fmt]
    got = round_down(exact, fmt)
    assert math.isinf(got) or dtype(got) == got
    assert got == -math.inf or got <= exact
    with np.errstate(over="ignore"):
        above = float(np.nextafter(dtype(got), dtype(np.inf)))
    assert above == math.inf or above > exact


def soft_cap(cap: float) -> FloatInterval:
    constant = floats.point(cap, F32)
    inner = functions.INCREASING["tanh"](floats.divide(ANY, constant, F32), F32)
    return floats.multiply(inner, constant, F32)


@pytest.mark.parametrize("cap", [5.0, 20.0, 30.0, 50.0])
def test_soft_capping_is_bounded_by_its_cap(cap: float) -> None:
    assert soft_cap(cap) == FloatInterval(-cap, cap, nan=True)


def test_sigmoid_is_between_0_and_1() -> None:
    one = floats.point(1.0, F32)
    exp = functions.INCREASING["exp"](ANY, F32)
    got = floats.divide(one, floats.add(exp, one, F32), F32)
    assert got.lo == 0
    assert 1 <= got.hi < 1 + 2.0**-20


def test_nan_passes_through() -> None:
    assert floats.add(ONLY_NAN, floats.point(1.0, F32), F32) == ONLY_NAN
    assert floats.maximum(ONLY_NAN, ANY) == ONLY_NAN
    assert floats.maximum_number(ONLY_NAN, floats.point(1.0, F32)) == FloatInterval(
        1, 1
    )
