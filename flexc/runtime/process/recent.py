"""Values that threads share: those of recent keys, and those made in the background.

Also work without garbage collection.
"""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import RLock, Thread, current_thread, main_thread
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


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection within a `with` block, such as imports and tracing.

    There is one collector, so only the main thread disables it.
    """
    if not gc.isenabled() or current_thread() is not main_thread():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Background(Generic[Value]):
    """A value that a thread computes in the background.

    `get` raises the error of the thread. After an error, the next `get` computes the
    value itself. So does `get` in a forked child, which does not have the thread. A
    process waits for such threads before it ends.
    """

    def __init__(self, make: Callable[[], Value], apart: bool = True):
        """Start to compute the value in a thread, or compute it now if not `apart`."""
        self._make = make
        self._made: tuple[Value] | None = None
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        if not apart:
            self._made = (make(),)
            return
        thread = Thread(target=self._try, name="flexc")
        try:
            thread.start()
        except RuntimeError:  # The process cannot start more threads.
            return
        self._thread = thread

    def _try(self) -> None:
        try:
            self._made = (self._make(),)
        except BaseException as error:
            self._error = error

    def get(self) -> Value:
        """Return the value, and wait for it if needed."""
        if self._made is None:
            self._made = self._wait()
        value = self._made[0]
        self._make = lambda: value  # Release the objects that the value was made of.
        return value

    def _wait(self) -> tuple[Value]:
        if self._thread is not None:
            with without_collection():
                self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        with turn(self):
            return self._made or (self._make(),)
