"""Functions that pause in the middle, however deep in calls they are."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


class _ClosedError(BaseException):
    """Unwinds a coroutine that is not to go on; no handler of errors sees it."""


class Coroutine:
    """A function on a thread of its own, which runs only while it is resumed.

    Whoever resumes it waits until it pauses or ends: one thread runs at a time.
    """

    def __init__(self, body: Callable[[], object], name: str):
        self.done = False
        self._body = body
        # What torch keeps for each thread.
        self._grad = torch.is_grad_enabled()
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Run until the next pause or the end; raises what the function raises."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
            if self._error is not None:
                raise self._error

    def pause(self) -> None:
        """Wait to be resumed; the function calls this."""
        self._back.release()
        self._go.acquire()
        if self._closing:
            raise _ClosedError

    def close(self) -> None:
        """End the function where it has paused."""
        self._closing = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._closing:
                with torch.set_grad_enabled(self._grad):
                    self._body()
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.done = True
            self._back.release()
