"""Every op family, imported and run, against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.unit.frontend.evaluate import check_mask, check_score

Binary = Callable[[Any, Any], Any]

FLOAT_UNARY = [
    torch.abs, torch.asinh, torch.atan, torch.ceil, torch.cos, torch.cosh,
    torch.erf, torch.erfc, torch.exp, torch.exp2, torch.expm1, torch.floor, torch.frac,
    torch.neg, torch.reciprocal, torch.relu, torch.round, torch.sigmoid,
    torch.sign, torch.sin, torch.sinh, torch.square, torch.tan, torch.tanh,
    torch.trunc, torch.nan_to_num, torch.sgn, torch.sinc, torch.deg2rad,
    F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu, F.logsigmoid,
    F.mish, F.relu6, F.silu, F.softplus, F.softsign, F.selu, F.celu, F.tanhshrink,
]  # fmt: skip

PARTIAL_UNARY = [
    torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt,
    torch.acosh, torch.acos, torch.asin, torch.atanh, torch.logit,
]  # fmt: skip

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("fn", FLOAT_UNARY + PARTIAL_UNARY, ids=lambda f: f.__name__)
def test_float_unary(fn: Callable[..., Any]) -> None:
    check_score(lambda s, b, h, q, k: fn(s), rtol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    "fn", [torch.exp, torch.tanh, F.silu, F.gelu, torch.sigmoid, F.softplus]
)
def test_unary_of_other_floats(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    rtol = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-6)
    check_score(lambda s, b, h, q, k: fn((s / 8).to(dtype)), rtol=rtol)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a // b,
        lambda a, b: a % b,
        torch.fmod,
        torch.maximum,
        torch.minimum,
        torch.fmax,
        torch.fmin,
        torch.atan2,
        torch.copysign,
        torch.hypot,
        torch.logaddexp,
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.add(a, b, alpha=2.5),
        lambda a, b: torch.rsub(a, b),
        lambda a, b: torch.clamp(a, min=b),
        lambda a, b: torch.clamp(a, max=b),
        lambda a, b: torch.where(a < b, a, b),
        lambda a, b: torch.lerp(a, b, 0.25),
        lambda a, b: torch.addcmul(a, a, b, value=0.5),
        lambda a, b: torch.addcdiv(a, a, b),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_float_binary(fn: Binary, dtype: torch.dtype) -> None:
    rtol = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-6)
    for divisor in (2.0, -1.5, 0.7):

        def mod(s: Any, b: Any, h: Any, q: Any, k: Any, d: float = divisor) -> Any:
            return fn(s.to(dtype), (h + d).to(dtype))

        check_score(mod, rtol=rtol)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: torch.fmod(a, b),
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: ~a,
        lambda a, b: a << 1,
        lambda a, b: a >> 1,
        lambda a, b: a << b,
        lambda a, b: a >> b,
        lambda a, b: abs(a),
        lambda a, b: torch.sign(a),
        lambda a, b: -a,
        lambda a, b: a**2,
        lambda a, b: torch.clamp(a, 1, 5),
        torch.maximum,
        torch.minimum,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: a < b,
        lambda a, b: a == b,
        lambda a, b: a >= 3,
        lambda a, b: a.float(),
        lambda a, b: a.to(torch.bfloat16),
        lambda a, b: a.to(torch.bool),
        lambda a, b: a.to(torch.int8).to(torch.int32),
        lambda a, b: a.to(torch.uint8).to(torch.int32),
    ],
)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(fn: Binary, dtype: torch.dtype) -> None:
    check_score(lambda s, b, h, q, k: fn((q - k).to(dtype), (h + 1).to(dtype)))


def test_signs_of_integer_division() -> None:
    for divisor in (3, -3):
        check_score(lambda s, b, h, q, k, d=divisor: (q - k) // d)
        check_score(lambda s, b, h, q, k, d=divisor: (q - k) % d)


def test_powers() -> None:
    for exponent in (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 2.5, 1.0, 7):
        check_score(lambda s, b, h, q, k, x=exponent: (s.abs() + 0.5) ** x, rtol=1e-5)
    check_score(lambda s, b, h, q, k: 2.0 ** (-(h + 1)), rtol=1e-5)
    check_score(lambda s, b, h, q, k: 3**h)
    check_score(lambda s, b, h, q, k: torch.pow(q - k, h))


def test_logic() -> None:
    check_mask(lambda b, h, q, k: (q > k) & (h != 1) | ~(b == 0))
    check_mask(lambda b, h, q, k: (q > k) ^ (h != 1))
    check_mask(lambda b, h, q, k: torch.logical_and(q, k))
    check_mask(lambda b, h, q, k: torch.logical_or(q - k, h).logical_not())
    check_mask(lambda b, h, q, k: torch.logical_xor(q, h))
    check_mask(lambda b, h, q, k: q.new_ones((), dtype=torch.bool) & (q < 4))
    check_mask(lambda b, h, q, k: torch.where(q > k, h > 1, b > 0))
    check_mask(lambda b, h, q, k: torch.full((), True, dtype=torch.bool))


def test_predicates_of_floats() -> None:
    check_score(lambda s, b, h, q, k: torch.isnan(s / h / s).float())
    check_score(lambda s, b, h, q, k: torch.isinf(s / h).float())
    check_score(lambda s, b, h, q, k: torch.isfinite(s / h).float())
    check_score(lambda s, b, h, q, k: torch.signbit(s).float())
    check_score(lambda s, b, h, q, k: torch.nan_to_num(s / h, 1.0, 2.0, 3.0))
    check_score(lambda s, b, h, q, k: torch.clamp(s / h, -1.0, 1.0))


def test_rounding_to_decimals() -> None:
    check_score(lambda s, b, h, q, k: torch.round(s * 1.2345, decimals=2))
    check_score(lambda s, b, h, q, k: torch.round(s * 12.345, decimals=-1))


def test_promotion() -> None:
    check_score(lambda s, b, h, q, k: q / 3 + 0.1)
    check_score(lambda s, b, h, q, k: (q > 3) + 2)
    check_score(lambda s, b, h, q, k: (q > 3) * 0.3)
    check_score(lambda s, b, h, q, k: q.to(torch.float16) * 0.1 + s)
    check_score(lambda s, b, h, q, k: (q.to(torch.bfloat16) + 0.1) * 3)
    check_score(lambda s, b, h, q, k: q.to(torch.int64) * 3_000_000_000 % 7)
    check_score(lambda s, b, h, q, k: torch.sqrt(q) + torch.exp(-h))


INTS = torch.arange(8, dtype=torch.int32) - 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k: (q + 2**40) % 1001,
        lambda q, k: (2**40 - k) // 2**33,
        lambda q, k: (q * 2654435761 & 0xFFFFFFFF) % 7,
        lambda q, k: (q * 0x9E3779B1 ^ k) >> 3,
        lambda q, k: (q * -(2**31) - k) % 5,
        lambda q, k: torch.clamp(q * 2**36, 2**33, 2**38) >> 30,
        lambda q, k: torch.where(q > k, q, 2**35) % 11,
        lambda q, k: q + torch.tensor(2**40),
        lambda q, k: (q << 40) - (k << 33),
        lambda q, k: (q << 62) >> 61,
        lambda q, k: ((q - k) >> 32) + (q >> 63),
        lambda q, k: (q << k * 9) % 1000,
        lambda q, k: (q << 64) + ((k - q) >> 70),
        lambda q, k: (q * 2**30).to(torch.int32),
        lambda q, k: (q * 2**30).int() * 3,
        lambda q, k: (q * 2**35).bool() & (k * 2**33).to(torch.bool),
        lambda q, k: torch.full_like(q, 2**40) + k,
        lambda q, k: (q - k) ** 23,
        lambda q, k: torch.sign((q - k) * 2**33) * 2**40,
        lambda q, k: INTS[q] * 2**30,
        lambda q, k: INTS[q] * 2**30 + k,
        lambda q, k: INTS[q] * 2**40 + 1,
        lambda q, k: INTS[q] * 2**31 < k,
        lambda q, k: INTS[q] % (k + 2**35),
        lambda q, k: (INTS[q] * k) << 29,
        lambda q, k: INTS.long()[q] * 2**31 + k,
        lambda q, k: INTS[(q * 2**29).int() >> 30],
    ],
)
def test_positions_are_int64(fn: Binary) -> None:
    check_score(lambda s, b, h, q, k: fn(q, k))


def test_constants_and_fills() -> None:
    check_score(lambda s, b, h, q, k: torch.where(q > k, s, torch.tensor(-1.0)))
    check_score(lambda s, b, h, q, k: torch.where(q > k, s, -math.inf))
    check_score(lambda s, b, h, q, k: torch.full_like(s, 3) + torch.zeros_like(q))
    check_score(lambda s, b, h, q, k: s.masked_fill(q < k, 7.0))
    check_score(lambda s, b, h, q, k: s + torch.tensor([1.0, 2.0, 3.0, 4.0])[h])
    check_score(lambda s, b, h, q, k: 0.5)


def test_in_place_on_own_values() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = s * 2
        x += h
        x.mul_(3).clamp_(max=10)
        return x

    check_score(mod)


TABLE = torch.arange(32, dtype=torch.float32).view(4, 8) * 0.5
CUBE = torch.arange(64, dtype=torch.float32).view(2, 4, 8)


@pytest.mark.parametrize(
    "read",
    [
        lambda b, h, q, k: TABLE[h, q],
        lambda b, h, q, k: TABLE[h][q],
        lambda b, h, q, k: TABLE[h, :][q],
        lambda b, h, q, k: TABLE[:, k][h],
        lambda b, h, q, k: TABLE[-1, q],
        lambda b, h, q, k: TABLE[h, -1 - q],
        lambda b, h, q, k: TABLE[1:][h - 1, q],
        lambda b, h, q, k: TABLE[:, 2:7][h, q - 3],
        lambda b, h, q, k: TABLE[:, ::2][h, h],
        lambda b, h, q, k: TABLE[..., -3:][h, -1],
        lambda b, h, q, k: TABLE.T[q, h],
        lambda b, h, q, k: TABLE.t()[q][h],
        lambda b, h, q, k: TABLE[None, h, None, q][0, 0],
        lambda b, h, q, k: TABLE.flatten()[h * 8 + q],
        lambda b, h, q, k: TABLE.view(-1)[h * 8 + q],
        lambda b, h, q, k: TABLE.reshape(2, 16)[b, q],
        lambda b, h, q, k: (TABLE * 2 + 1)[h, q],
        lambda b, h, q, k: TABLE.to(torch.bfloat16)[h, q],
        lambda b, h, q, k: (TABLE + TABLE[0])[h, q],
        lambda b, h, q, k: torch.arange(8)[q] * 2,
        lambda b, h, q, k: CUBE[b, h, q],
        lambda b, h, q, k: CUBE[b][h][q],
        lambda b, h, q, k: CUBE[b, :, q][h],
        lambda b, h, q, k: CUBE.permute(2, 0, 1)[q, b, h],
        lambda b, h, q, k: CUBE.transpose(0, 1)[h, b, q],
        lambda b, h, q, k: CUBE[:, 1][b, q],
        lambda b, h, q, k: F.embedding(h, TABLE)[q],
        lambda b, h, q, k: TABLE[h, q.to(torch.int64)],
        lambda b, h, q, k: TABLE[b, :, None][q, 0],
        lambda b, h, q, k: CUBE[b, ..., q][h],
        lambda b, h, q, k: CUBE[-1, h, 1:][q - 1],
        lambda b, h, q, k: TABLE[0, 3],
        lambda b, h, q, k: TABLE.expand(2, 4, 8)[b, h, q],
        lambda b, h, q, k: TABLE.shape[1] + TABLE.size(0) + TABLE.numel(),
    ],
)
def test_reads_of_captured_tensors(read: Callable[..., Any]) -> None:
    check_score(lambda s, b, h, q, k: read(b, h, q, k))


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS, torch.bool], ids=str)
def test_dtypes_of_captured_tensors(dtype: torch.dtype) -> None:
    table = (torch.arange(-4, 4) * 50).to(dtype)
    zero = torch.tensor(3).to(dtype)
    check_score(lambda s, b, h, q, k: s + table[q] * zero)
    check_score(lambda s, b, h, q, k: torch.where(table[q] > table[k], s, zero))
