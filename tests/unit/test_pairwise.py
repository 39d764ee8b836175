"""Parameters that are not slow: what they have between them."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from tests.support.pairwise import in_turn, pairwise

AXES = ("ab", (1, 2, 3), (None, True), "wxyz")


def quick(params: list[Any]) -> list[tuple[Any, ...]]:
    return [p.values for p in params if not p.marks]


def test_pairwise_has_all_pairs() -> None:
    params = pairwise(*AXES)
    assert [p.values for p in params] == list(product(*AXES))
    found = quick(params)
    for i, j in combinations(range(len(AXES)), 2):
        assert {(p[i], p[j]) for p in found} == set(product(AXES[i], AXES[j]))
    assert len(found) <= 15  # Of 48; no fewer than 12 have all pairs.


def test_turns_have_all_values() -> None:
    params = in_turn("abc", (1, 2))
    assert [p.values for p in params] == list(product("abc", (1, 2)))
    assert quick(params) == [("a", 1), ("b", 2), ("c", 1)]
