"""A walk that notes its ways, to name what makes a walk too long.

It is made after an ordinary walk has failed, over the same values.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from types import FunctionType, MethodType
from typing import Any

from flexc.errors import StateError
from flexc.frontend.walk import Walk

Way = tuple[str, ...]

MAX_TEXT = 80
"""Characters of a way that are shown."""


class Trail(Walk):
    """A walk with the way to all that it meets, as Python would write it."""

    def __init__(self, roots: Mapping[int, Way]):
        super().__init__()
        self._ways = dict(roots)
        """By identity: the first way to each value."""
        self._holders: list[Any] = []
        self._members: list[int] = []
        """How many members of each holder were met."""
        self._costs: Counter[Way] = Counter()

    def spend(self, cost: int) -> None:
        holder = self._holders[-1] if self._holders else self._owner
        way = self._ways.get(id(holder), ())
        self._costs.update(dict.fromkeys(accumulate((w,) for w in way), cost))
        super().spend(cost)

    def visit(self, value: Any) -> Any:
        way = self._way_to(value)
        self._ways.setdefault(id(value), way)
        self._holders.append(value)
        self._members.append(0)
        result = super().visit(value)
        self._holders.pop()
        self._members.pop()
        return result

    def _way_to(self, value: Any) -> Way:
        holder = self._holders[-1] if self._holders else self._owner
        way = self._ways.get(id(holder), ())
        match holder:
            case tuple() | list():
                self._members[-1] += 1
                return (*way, f"[{self._members[-1] - 1}]")
            case dict():
                return (*way, f"[{self.name!r}]")
            case FunctionType() if value is holder.__defaults__:
                return (f"{holder.__name__}.__defaults__",)
            case FunctionType():
                return (self.name,)
            case None | MethodType() | functools.partial():
                return way
        return (*way, f"[{self.name}]" if self.name.isdigit() else f".{self.name}")

    def heaviest(self, parts: Any) -> str:
        """The narrowest way to more than half of what a walk has read."""
        with suppress(StateError, RecursionError):
            self.run(parts)
        most = sum(cost for way, cost in self._costs.items() if len(way) == 1) / 2
        ways = [way for way, cost in self._costs.items() if cost > most]
        text = "".join(max(ways, key=len, default=()))
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
