"""Generated indices of captured reads: of positions, distances, and what is read."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.property.affine_masks import (
    COMPARISONS,
    K,
    Q,
    Spelled,
    absolute,
    chosen,
    clamped,
    compared,
    difference,
    divided,
    moved,
    number,
    scaled,
)

B = Spelled(lambda b, h, q, k: b, "b")
H = Spelled(lambda b, h, q, k: h, "h")

small = st.integers(-9, 20)
factors = st.sampled_from([-2, -1, 2, 3, 2**15, 2**31, 2**33 + 1])

UNARY: dict[str, Callable[[Any], Any]] = {
    "(-{})": operator.neg,
    "(~{})": operator.invert,
    "({} << 2)": lambda x: x << 2,
    "({} >> 1)": lambda x: x >> 1,
    "({} & 6)": lambda x: x & 6,
    "{}.to(int64)": lambda x: x.to(torch.int64),
    "{}.to(int32)": lambda x: x.to(torch.int32),
    "{}.to(int16)": lambda x: x.to(torch.int16),
    "{}.to(uint8)": lambda x: x.to(torch.uint8),
    "{}.float().long()": lambda x: x.float().long(),
    "({}.float() * 0.5).long()": lambda x: (x.float() * 0.5).long(),
    "({}.float() * 3 - 1).long()": lambda x: (x.float() * 3 - 1).long(),
    "({}.float() + 0.25).half().long()": lambda x: (x.float() + 0.25).half().long(),
    "{}.double().neg().int()": lambda x: x.double().neg().int(),
    "log2(1 + abs({}))": lambda x: torch.log2(x.abs().float() + 1).long(),
    "{}.sign()": torch.sign,
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "({} + {})": operator.add,
    "({} - {})": operator.sub,
    "({} * {})": operator.mul,
    "({} ^ {})": operator.xor,
    "maximum({}, {})": torch.maximum,
    "minimum({}, {})": torch.minimum,
    "({}.float() - {}.float()).long()": lambda x, y: (x.float() - y.float()).long(),
    "(({}.float() + 2**24) - ({}.float() + 2**24)).long()": lambda x, y: (
        (x.float() + 2.0**24) - (y.float() + 2.0**24)
    ).long(),
    "({}.float() < {}.float()).long()": lambda x, y: (x.float() < y.float()).long(),
}


def unary(x: Spelled, text: str) -> Spelled:
    f, g = x.function, UNARY[text]
    return Spelled(lambda b, h, q, k: g(f(b, h, q, k)), text.format(x))


def binary(text: str, x: Spelled, y: Spelled) -> Spelled:
    e, f, g = BINARY[text], x.function, y.function
    return Spelled(
        lambda b, h, q, k: e(f(b, h, q, k), g(b, h, q, k)), text.format(x, y)
    )


def remainder(x: Spelled, n: int) -> Spelled:
    f = x.function
    return Spelled(lambda b, h, q, k: f(b, h, q, k) % n, f"({x} % {n})")


def read(table: Tensor, x: Spelled) -> Spelled:
    """An integer of a captured tensor, at a place that is in range."""
    f, n = x.function, len(table)
    return Spelled(lambda b, h, q, k: table[f(b, h, q, k) % n], f"t{n}[{x} % {n}]")


def tests_of(x: st.SearchStrategy[Spelled]) -> st.SearchStrategy[Spelled]:
    """Comparisons of such values."""
    return st.builds(compared, st.sampled_from(COMPARISONS), x, x | some_number)


some_number = st.builds(number, small)

tables = st.lists(st.integers(-3, 9), min_size=1, max_size=7).map(torch.tensor)


def functions_of(x: st.SearchStrategy[Spelled]) -> st.SearchStrategy[Spelled]:
    """What may be computed of some values."""
    return st.recursive(
        x,
        lambda x: st.one_of(
            st.builds(moved, x, small),
            st.builds(scaled, x, factors),
            st.builds(divided, x, st.integers(1, 7)),
            st.builds(remainder, x, st.integers(1, 9)),
            st.builds(clamped, x, st.tuples(small, small)),
            st.builds(absolute, x),
            st.builds(unary, x, st.sampled_from(sorted(UNARY))),
            st.builds(binary, st.sampled_from(sorted(BINARY)), x, x),
            st.builds(read, tables, x),
            st.builds(chosen, tests_of(x), x, x),
        ),
        max_leaves=4,
    )


heads = st.sampled_from([B, H])
distances = st.sampled_from(
    [
        difference(Q, K),
        difference(K, Q),
        difference(moved(Q, 3), moved(K, 5)),
        difference(scaled(Q, 3), scaled(K, 3)),
        difference(binary("maximum({}, {})", Q, K), Q),
        binary("({}.float() - {}.float()).long()", K, Q),
    ]
)
indices = st.one_of(
    st.sampled_from([B, H, Q, K, difference(Q, K)]),
    functions_of(distances),
    functions_of(distances | heads),
    functions_of(st.just(Q)),
    functions_of(st.just(K) | heads),
    functions_of(st.sampled_from([B, H, Q, K])),
)
