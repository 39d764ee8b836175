"""A mapping with a bound: what was not used for longest goes first."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Generic, TypeVar

MOST = 1024
"""How many values are kept."""

_lock = RLock()
"""Held for an access, never while something is made. It is free whenever a process is
forked: a child would wait forever for a thread that it does not have."""
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)

_turns: dict[Hashable, list[RLock]] = {}
"""Of what is being made, a lock that is held meanwhile, once for each thread."""
os.register_at_fork(after_in_child=_turns.clear)


@contextmanager
def turn(*what: Hashable) -> Iterator[None]:
    """Hold what nobody else may make at the same time."""
    with _lock:
        locks = _turns.setdefault(what, [])
        locks.append(locks[0] if locks else RLock())
    try:
        with locks[0]:
            yield
    finally:
        with _lock:
            locks.pop()
            if not locks:
                _turns.pop(what, None)


Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key, of which several may be told apart by what else they fit."""

    def __init__(self, most: int = MOST):
        self.most = most
        self._count = 0
        self._values: OrderedDict[Hashable, tuple[Value, ...]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def find(
        self, key: Hashable, fits: Callable[[Value], Any] = lambda _: True
    ) -> Value | None:
        """The first value of a key that fits."""
        with _lock:
            values = self._values.get(key, ())
            if values:
                self._values.move_to_end(key)
        return next(filter(fits, values), None)

    def add(self, key: Hashable, value: Value) -> Value:
        """Keep a value, and return it."""
        with _lock:
            self._values[key] = (*self._values.pop(key, ()), value)
            self._count += 1
            while self._count > self.most:
                self.take(next(iter(self._values)))
        return value

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made by the first thread that asks for it."""
        value = self.find(key)
        if value is None:
            with turn(self, key):
                value = self.find(key)
                if value is None:
                    value = self.add(key, make())
        return value

    def take(self, key: Hashable) -> Value | None:
        """The first value of a key, which is not kept any longer."""
        with _lock:
            if key not in self._values:
                return None
            first, *others = self._values[key]
            if others:
                self._values[key] = tuple(others)
            else:
                del self._values[key]
            self._count -= 1
        return first

    def clear(self) -> None:
        with _lock:
            self._values.clear()
            self._count = 0
