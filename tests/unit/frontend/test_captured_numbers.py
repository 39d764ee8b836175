"""Captured numbers: Python computes with them, whatever their size, at each call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import flexc
from flexc.errors import DivisionByZeroError
from flexc.frontend.capture import capture_mods
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import read_mods
from flexc.runtime.kernels.driver import counters
from tests.support.reference import attention

QUERY, KEY, VALUE = torch.randn(3, 1, 2, 8, 16).unbind()
TABLE = torch.randn(5, 3)
MOST, BIG = 2**63 - 1, 2**53

Mod = Callable[..., Any]
Build = Callable[..., Mod]


def check(build: Build, calls: Sequence[tuple[Any, ...]], backend: str) -> None:
    """What flexc computes of each call's numbers is what torch does, or both raise."""
    for numbers in calls:
        mod = build(*numbers)
        is_mask = mod.__code__.co_argcount == 4
        mods = (None, mod) if is_mask else (mod, None)
        try:
            expected = attention(QUERY, KEY, VALUE, *mods).out.float()
        except ArithmeticError as error:
            with pytest.raises(type(error)):
                run(mods, backend)
            continue
        got = run(mods, backend)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def run(mods: tuple[Mod | None, Mod | None], backend: str) -> torch.Tensor:
    out = flexc.flex_attention(
        QUERY, KEY, VALUE, mods[0], mask_mod=mods[1], backend=backend
    )
    assert isinstance(out, torch.Tensor)
    return out


def score(of: Callable[..., Any]) -> Build:
    """Mods that add a number."""
    return lambda *n: lambda s, b, h, q, k: s + of(*n) * k * 0.1


def factor(of: Callable[..., Any]) -> Build:
    """Mods that multiply by a number."""
    return lambda *n: lambda s, b, h, q, k: s * of(*n)


KERNELS: dict[str, tuple[Build, list[tuple[Any, ...]]]] = {
    "sum, in a mask": (
        lambda n, m: lambda b, h, q, k: k <= (n + m) % 11,
        [(3, 5), (MOST, 5), (-MOST - 1, -5), (MOST, MOST)],
    ),
    "product": (
        score(lambda n, m: (n * m) % 11),
        [(3, 5), (2**40, 2**41), (-(2**40), 2**41)],
    ),
    "quotient": (factor(lambda n, m: (n * m) / 2**79), [(3, 5), (2**40, 2**40)]),
    "size": (
        score(lambda n: (TABLE.shape[0] * n) % 7 + TABLE.numel() // n),
        [(3,), (2**62,), (0,), (-5,)],
    ),
    "a sum that 64 bits do not hold": (
        lambda n, m: lambda s, b, h, q, k: s * 0.1 + (k * (n + m)) % 7,
        [(3, 2), (MOST, 1), (MOST, MOST), (4, 2)],
    ),
    "overflow of floats": (
        lambda n: lambda s, b, h, q, k: torch.where(n * 10.0 / 10.0 > s + 1e30, s, 0.0),
        [(1e308,), (1.0,)],
    ),
}

INTERPRETED: dict[str, tuple[Build, list[tuple[Any, ...]]]] = {
    "sums of floats that cancel": (
        factor(lambda x: x + 1e16 - 1e16),
        [(1.5,), (0.1,), (3.0,)],
    ),
    "sums that cancel, branched on": (
        lambda x, y: lambda s, b, h, q, k: s * 2 if x + y - y > 0.05 else s,
        [(1.5, 1e16), (0.1, 1e16), (0.1, 1.0), (3.0, 1e16)],
    ),
    "sums that are equal as real numbers": (
        factor(lambda x, y: (x + y) + ((x + y) + 1e16 - 1e16)),
        [(0.1, 0.2), (1.0, 2.0)],
    ),
    "floors": (
        score(lambda n, m: n // m + n % m),
        [(7, 3), (-7, 3), (7, -3), (-7, -3), (7, 0), (MOST, -1), (-MOST - 1, -1)],
    ),
    "floors of floats": (
        score(lambda n, m: n // m + n % m),
        [(5.5, 2.0), (-5.5, 2.0), (5.5, -2.0), (1.0, 0.1), (3.0, 0.0)],
    ),
    "floors of floats, branched on": (
        score(lambda n, m: (1.0 if n // m == 9 else 2.0) + math.floor(n / m)),
        [(5.5, 2.0), (1.0, 0.1), (0.9, 0.1), (3.0, 0.0)],
    ),
    "shifts": (
        score(lambda n, m: (n << m) % 7 + (n >> m)),
        [(3, 5), (3, 62), (1, 100), (-3, 70), (3, 0)],
    ),
    "powers": (
        score(lambda n, m: (n**m) % 13),
        [(3, 5), (10, 30), (0, 0), (-2, 65), (2, -1), (0, -1), (2.5, 3)],
    ),
    "quotients": (
        score(lambda n, m: n / m),
        [(1, 3), (2**62 + 1, 2**60 + 1), (MOST, MOST - 2), (5, 0)],
    ),
    "integers beyond floats": (
        score(lambda n, m: 1.0 if n > m else 2.0),
        [(BIG, 2.0**53), (BIG + 1, 2.0**53), (BIG + 3, 2.0**53), (5, 2.0)],
    ),
    "a condition": (
        lambda n, m: lambda b, h, q, k: (k >= h) & (n > m),
        [(BIG + 1, 2.0**53), (BIG, 2.0**53), (5, 2.0)],
    ),
    "roundings": (
        score(lambda n, m: math.floor(n * m) + round(n) + int(m)),
        [(2.5, 3.25), (3.5, -3.25), (4.5, 2.0)],
    ),
    "rounded to tens": (score(lambda n: round(n, -1)), [(3,), (15,), (25,), (-12,)]),
    "a branch on a rounded product": (
        score(lambda n: 1.0 if n * 10.0 * 0.1 == n else 2.0),
        [(3.0,), (0.3,), (0.7,), (1.1,)],
    ),
    "a branch on a rounded sum": (
        score(lambda n, m: 1.0 if (n - m) + m == n else 2.0),
        [(3.0, 7.0), (0.1, 1e16), (3.0, 8.0)],
    ),
    "a branch on a remainder": (
        score(lambda n: 1.0 if n % 1 == 0 else 2.0),
        [(2.0,), (0.5,), (-0.5,), (3.0,)],
    ),
    "a branch on a sign": (
        score(lambda n: math.copysign(1.0, n)),
        [(0.0,), (-0.0,), (2.0,), (-2.0,)],
    ),
    "a branch on integers": (
        score(lambda n, m: 1.0 if n * m > 2**63 or n // m == 2 else 2.0),
        [(5, 2), (2**40, 2**40), (3, 2), (4, 0)],
    ),
    "bounds of a slice": (
        lambda n, m: (
            lambda s, b, h, q, k: s + TABLE[: n + 1][k % 2, 0] * TABLE[n - m :][h, 1]
        ),
        [(3, 2), (1, 1), (4, 2)],
    ),
}


@pytest.mark.parametrize("name", [*KERNELS, *INTERPRETED])
def test_numbers_are_pythons(name: str) -> None:
    build, calls = (KERNELS | INTERPRETED)[name]
    check(build, calls, "eager")


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_given_pythons_numbers(name: str) -> None:
    check(*KERNELS[name], "auto")


def capture(score_mod: Mod) -> CapturedMods:
    return capture_mods(read_mods(score_mod, None))


def test_a_number_is_one_input() -> None:
    n, m = 7, 3
    mods = capture(lambda s, b, h, q, k: s * (m - n) + (m - n) * k + m)
    assert mods.score is not None
    assert [i.name for i in mods.score.inputs] == ["m", "m_sub_n"]
    assert [i.value([2, 5]) for i in mods.score.inputs] == [2, -3]
    assert not mods.guards.hold([2**63 - 1, -1])


def test_new_numbers_build_nothing() -> None:
    def width(n: int) -> Mod:
        return lambda b, h, q, k: q - k < n // 2

    flexc.flex_attention(QUERY, KEY, VALUE, mask_mod=width(8))
    before = counters.copy()
    check(lambda n: width(n), [(4,), (6,), (6,), (1,)], "auto")
    assert counters == before


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "remainder": lambda x, n: x % n,
    "floor": lambda x, n: x // n,
    "fmod": torch.fmod,
    "div": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "of what is computed": lambda x, n: x % (n - n),
    "of a size": lambda x, n: x % TABLE[:0].shape[0],
    "constant": lambda x, n: x % 0,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_divided_by_zero_raise(name: str) -> None:
    def mod(zero: int) -> Mod:
        return lambda s, b, h, q, k: s + DIVISIONS[name](k, zero)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        attention(QUERY, KEY, VALUE, mod(0))
    with pytest.raises(DivisionByZeroError) as raised:
        run((mod(0), None), "auto")
    assert raised.value.location is not None
    assert raised.value.location.filename == __file__


def test_a_divisor_becomes_zero() -> None:
    def mod(count: int) -> Mod:
        return lambda b, h, q, k: k % count == 0

    check(mod, [(3,)], "auto")
    with pytest.raises(DivisionByZeroError, match="divides integers by count, which"):
        run((None, mod(0)), "auto")
    check(mod, [(2,)], "auto")


def test_floats_divide_by_zero() -> None:
    check(lambda n: lambda s, b, h, q, k: s + (k + 1) % n, [(2.0,), (0.0,)], "eager")


def test_explain_shows_the_number() -> None:
    n, m = MOST, 5
    text = str(flexc.explain(lambda b, h, q, k: k <= (n + m) % 11, 1, 1, 64, 64))
    assert "kv_idx <= n_add_m_mod11" in text
    assert f"n_add_m_mod11 = {(n + m) % 11}" in text
