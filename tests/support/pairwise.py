"""Parameters of a test that has many: some combinations, of which the rest is slow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """Return parameters for all combinations of values, one value of each axis.

    Those that are not slow have, together, each pair of values of two axes.
    """
    places = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing, chosen = set[Any]().union(*pairs.values()), set[tuple[int, ...]]()
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, place, strict=True)),
            marks=[] if place in chosen else pytest.mark.slow,
        )
        for place in places
    ]


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return parameters for all pairs of values.

    Those that are not slow have each value of `first` once, with the values of `second`
    in turn.
    """
    return [
        pytest.param(x, y, marks=[] if i % len(second) == j else pytest.mark.slow)
        for i, x in enumerate(first)
        for j, y in enumerate(second)
    ]
