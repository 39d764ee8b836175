"""Generated masks of affine comparisons, division, clamps, choices and logic.

A mask is built of small functions, as a user's would be, with numbers and tensors
captured: the frontend reads closures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

Function = Callable[[Any, Any, Any, Any], Any]

COMPARISONS = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne
)  # fmt: skip

small = st.integers(-40, 200)
factors = st.integers(-3, 4).filter(bool) | st.sampled_from([10**6, 2**20])
divisors = st.integers(1, 70)
any_divisors = divisors | st.sampled_from([-7, 2**31, 2**40 + 1, 2**62])


@dataclass(frozen=True)
class Spelled:
    """A function and how a person would write it."""

    function: Function
    text: str

    def __repr__(self) -> str:
        return self.text


Q = Spelled(lambda b, h, q, k: q, "q")
K = Spelled(lambda b, h, q, k: k, "k")


def moved(x: Spelled, n: int) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k) + n, f"({x} + {n})")


def scaled(x: Spelled, n: int) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k) * n, f"{x} * {n}")


def divided(x: Spelled, n: int) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k) // n, f"{x} // {n}")


def divided_by(x: Spelled, table: Tensor) -> Spelled:
    f = x.function
    return Spelled(
        lambda b, h, q, k: f(b, h, q, k) // table[h], f"{x} // {table.tolist()}[h]"
    )


def clamped(x: Spelled, ends: tuple[int, int]) -> Spelled:
    f, lo, hi = x.function, min(ends), max(ends)
    return Spelled(lambda b, h, q, k: f(b, h, q, k).clamp(lo, hi), f"{x}.clamp{ends}")


def chunk_start(x: Spelled, n: int) -> Spelled:
    f = x.function
    return Spelled(
        lambda b, h, q, k: f(b, h, q, k) - f(b, h, q, k) % n, f"({x} - {x} % {n})"
    )


def multiple(x: Spelled, n: int, plus: int) -> Spelled:
    f = x.function
    return Spelled(
        lambda b, h, q, k: (f(b, h, q, k) // n + plus) * n,
        f"({x} // {n} + {plus}) * {n}",
    )


def multiplied(x: Spelled, table: Tensor) -> Spelled:
    f = x.function
    return Spelled(
        lambda b, h, q, k: f(b, h, q, k) * table[h], f"{x} * {table.tolist()}[h]"
    )


def extreme(op: Callable[[Any, Any], Any], x: Spelled, y: Spelled) -> Spelled:
    f, g = x.function, y.function
    return Spelled(
        lambda b, h, q, k: op(f(b, h, q, k), g(b, h, q, k)), f"{op.__name__}({x}, {y})"
    )


def difference(x: Spelled, y: Spelled) -> Spelled:
    f, g = x.function, y.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k) - g(b, h, q, k), f"({x} - {y})")


def absolute(x: Spelled) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k).abs(), f"{x}.abs()")


def shifted(x: Spelled, table: Tensor) -> Spelled:
    f = x.function
    return Spelled(
        lambda b, h, q, k: f(b, h, q, k) + table[h], f"({x} + {table.tolist()}[h])"
    )


def compared(op: Callable[[Any, Any], Any], x: Spelled, y: Spelled) -> Spelled:
    f, g = x.function, y.function
    return Spelled(
        lambda b, h, q, k: op(f(b, h, q, k), g(b, h, q, k)), f"{op.__name__}({x}, {y})"
    )


def number(n: int) -> Spelled:
    return Spelled(lambda b, h, q, k: n, str(n))


def per_head(table: Tensor) -> Spelled:
    return Spelled(lambda b, h, q, k: table[h], f"{table.tolist()}[h]")


def joined(op: Callable[[Any, Any], Any], x: Spelled, y: Spelled) -> Spelled:
    f, g = x.function, y.function
    return Spelled(
        lambda b, h, q, k: op(f(b, h, q, k), g(b, h, q, k)), f"({x} {op.__name__} {y})"
    )


def inverted(x: Spelled) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: ~f(b, h, q, k), f"~{x}")


def chosen(x: Spelled, y: Spelled, z: Spelled) -> Spelled:
    f, g, p = x.function, y.function, z.function
    return Spelled(
        lambda b, h, q, k: torch.where(f(b, h, q, k), g(b, h, q, k), p(b, h, q, k)),
        f"where({x}, {y}, {z})",
    )


large = st.sampled_from([2**31, -(2**31), 2**40 - 3000, 2**40 + 1, 2**62, -(2**63)])

narrow_tables = st.lists(small, min_size=2, max_size=2).map(
    lambda numbers: torch.tensor(numbers, dtype=torch.int32)
)

tables = st.one_of(
    narrow_tables,
    st.lists(small | large, min_size=2, max_size=2).map(torch.tensor),
)


positive_tables = st.lists(divisors, min_size=2, max_size=2).map(torch.tensor)

extremes = st.sampled_from([torch.minimum, torch.maximum])


def functions_of(position: Spelled) -> st.SearchStrategy[Spelled]:
    """Monotonic functions of one position."""
    return st.recursive(
        st.just(position),
        lambda x: st.one_of(
            st.builds(moved, x, small),
            st.builds(scaled, x, factors),
            st.builds(divided, x, divisors),
            st.builds(chunk_start, x, any_divisors),
            st.builds(multiple, x, any_divisors, st.sampled_from([0, 1, -1, 40])),
            st.builds(clamped, x, st.tuples(small, small)),
            st.builds(extreme, extremes, x, st.builds(per_head, tables)),
            st.builds(divided_by, x, positive_tables),
            st.builds(shifted, x, tables),
            st.builds(multiplied, x, narrow_tables),
        ),
        max_leaves=3,
    )


uniform = st.one_of(st.builds(number, small), st.builds(per_head, tables))


def bent(position: Spelled) -> st.SearchStrategy[Spelled]:
    """Functions of one position that may move both ways."""
    x = functions_of(position)
    choice = st.builds(compared, st.sampled_from(COMPARISONS), x, uniform)
    return st.one_of(
        x,
        x.map(absolute),
        st.builds(extreme, extremes, x, x),
        st.builds(chosen, choice, x, x),
        st.builds(moved, x.map(absolute), small),
    )


distance = st.builds(difference, functions_of(Q), functions_of(K))

comparisons = st.one_of(
    st.builds(compared, st.sampled_from(COMPARISONS), functions_of(Q), functions_of(K)),
    st.builds(compared, st.sampled_from(COMPARISONS), bent(Q), functions_of(K)),
    st.builds(compared, st.sampled_from(COMPARISONS), functions_of(Q), bent(K)),
    st.builds(compared, st.sampled_from(COMPARISONS), distance, uniform),
    st.builds(compared, st.sampled_from(COMPARISONS), distance.map(absolute), uniform),
    st.builds(compared, st.sampled_from(COMPARISONS), functions_of(K), uniform),
    st.builds(compared, st.sampled_from(COMPARISONS), functions_of(Q), uniform),
)

masks = st.recursive(
    comparisons,
    lambda x: st.one_of(
        st.builds(joined, st.sampled_from([operator.and_, operator.or_]), x, x),
        st.builds(inverted, x),
        st.builds(chosen, x, x, x),
    ),
    max_leaves=4,
)
