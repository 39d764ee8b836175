"""In which order roles go on and copies land."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from flexc.runtime.interpreters.schedule.agents import Agent
from flexc.runtime.interpreters.schedule.transfers import CopyIn

T = TypeVar("T")


class Interleaving(Protocol):
    """Chooses what happens next."""

    eager: bool
    """Whether to choose at each op of the schedule, or only where a role waits."""

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """One of these, of which there are some."""
        ...

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """Things in the order in which to do them."""
        ...


class InOrder:
    """The first role that can go on; copies land when none can."""

    eager = False

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """The first of all."""
        return ready[0] if ready else copies[0]

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """As they are."""
        return items


class Shuffled:
    """Priorities by chance, drawn anew now and then.

    So one role may be far ahead of the others for a while. See Burckhardt et al.,
    "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010.
    """

    eager = True

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._priorities: dict[Agent | CopyIn, float] = {}

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """That of the highest priority."""
        if self._random.random() < 1 / 8:
            self._priorities.clear()
        choices = [*ready, *copies]
        for choice in choices:
            self._priorities.setdefault(choice, self._random.random())
        return max(choices, key=self._priorities.__getitem__)

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """By chance."""
        return self._random.sample(items, len(items))
