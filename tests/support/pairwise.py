"""Parameters of a test that has many: pairs of values instead of all combinations."""

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
