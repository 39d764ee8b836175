"""A mapping of limited size that drops the least recently used keys."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Generic, TypeVar

MOST = 1024
"""The largest number of values by default."""

_lock = RLock()
"""A lock that is held for an access, never while a value is made. A fork waits for the
lock, because a child does not have the thread that would release it.
"""
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)

_turns: dict[Hashable, list[RLock]] = {}
"""For each value that is being made, its lock, listed once for each thread that uses
it.
"""
os.register_at_fork(after_in_child=_turns.clear)


@contextmanager
def turn(*what: Hashable) -> Iterator[None]:
    """Hold the lock for making one value within a `with` block.

    `what` identifies the value. Other threads that make the same value wait.
    """
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
    """Values by key. A key may have several values, which `fits` distinguishes."""

    def __init__(self, most: int = MOST):
        self.most = most
        self._count = 0
        self._values: OrderedDict[Hashable, tuple[Value, ...]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def find(
        self, key: Hashable, fits: Callable[[Value], Any] = lambda _: True
    ) -> Value | None:
        """Return the first value of a key that fits, else None."""
        with _lock:
            values = self._values.get(key, ())
            if values:
                self._values.move_to_end(key)
        return next(filter(fits, values), None)

    def add(self, key: Hashable, value: Value) -> Value:
        """Add a value to a key, and return the value."""
        with _lock:
            self._values[key] = (*self._values.pop(key, ()), value)
            self._count += 1
            while self._count > self.most:
                self.take(next(iter(self._values)))
        return value

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key. The first thread that asks for it makes it."""
        value = self.find(key)
        if value is None:
            with turn(self, key):
                value = self.find(key)
                if value is None:
                    value = self.add(key, make())
        return value

    def take(self, key: Hashable) -> Value | None:
        """Remove the first value of a key, and return it. Return None without one."""
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
