"""Values that are made by threads of their own, beside what Python does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from flexc.runtime.process.collection import without_collection
from flexc.runtime.process.recent import turn

Value = TypeVar("Value")


class Beside(Generic[Value]):
    """A value that is being made, for all who will need it.

    What goes wrong is raised where the value is asked for; who asks again makes it
    himself. So does a child of a process that was forked meanwhile, as it has no such
    thread. A process that ends waits for what it has begun.
    """

    def __init__(self, make: Callable[[], Value], apart: bool = True):
        """Begin to make it; without `apart` make it here and now."""
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
        except RuntimeError:  # There are no more threads to be had.
            return
        self._thread = thread

    def _try(self) -> None:
        try:
            self._made = (self._make(),)
        except BaseException as error:
            self._error = error

    def get(self) -> Value:
        """The value, once it is there."""
        if self._made is None:
            self._made = self._wait()
        value = self._made[0]
        self._make = lambda: value  # What it was made of may go.
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
