"""Values computed by threads in the background, and work without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from typing import Generic, TypeVar

from flexc.runtime.process.recent import turn


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


Value = TypeVar("Value")


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
