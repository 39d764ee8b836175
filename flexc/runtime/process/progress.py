"""A line that says what is being compiled, once that takes longer than a second.

Where stderr is a terminal and `rich` is installed it is a spinner; else it is a warning
of the logger "flexc", which Python prints unless it is told otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.0
"""Seconds that may pass in silence."""

WIDEST = 100
"""Characters of what is said of one kernel."""

log = logging.getLogger("flexc")


class Progress:
    """What all threads of this process are compiling."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[threading.Timer] = set()
        self.shown: dict[threading.Timer, str] = {}
        """What was said to be compiled and still is."""
        self.spinner: Any = None

    def begin(self, what: Callable[[], str], since: float) -> threading.Timer:
        """Say what is compiled a while after some time."""
        left = max(since + PATIENCE - time.monotonic(), 0.0)
        timer = threading.Timer(left, lambda: self.show(timer, shortened(what())))
        timer.daemon = True
        with self.lock:
            self.running.add(timer)
        timer.start()
        return timer

    def show(self, timer: threading.Timer, what: str) -> None:
        with self.lock:
            if timer not in self.running:
                return
            self.shown[timer] = what
            if self.spinner is None:
                self.spinner = spinner()
            if self.spinner is None:
                log.warning("compiling %s", what)
            else:
                self.spinner.update(self.markup)
                self.spinner.start()

    def end(self, timer: threading.Timer) -> None:
        """Say it no longer."""
        timer.cancel()
        with self.lock:
            self.running.discard(timer)
            self.shown.pop(timer, None)
            if self.spinner is None:
                return
            if self.shown:
                self.spinner.update(self.markup)
            else:
                self.spinner.stop()
                self.spinner = None

    @property
    def markup(self) -> str:
        """The text as rich reads it: brackets are no styles."""
        return self.text.replace("[", "\\[")

    @property
    def text(self) -> str:
        return f"flexc: compiling {', '.join(self.shown.values())}"


def spinner() -> Any:
    """A spinner of rich's; None where there is no terminal, or no rich."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True).status("")


class _Thread(threading.local):
    busy = False


_thread = _Thread()
_progress = Progress()


def _forget() -> None:
    """In a child nobody goes on with what its parent's threads compiled."""
    global _progress
    _progress = Progress()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def compiling(what: Callable[[], str], since: float | None = None) -> Iterator[None]:
    """Say that something is compiled, if that takes long.

    What is compiled within is a part of it, of which nothing is said. What another
    thread began counts `since` then, by `time.monotonic`.
    """
    if _thread.busy:
        yield
        return
    progress = _progress
    timer = progress.begin(what, time.monotonic() if since is None else since)
    _thread.busy = True
    try:
        yield
    finally:
        _thread.busy = False
        progress.end(timer)


def shortened(text: str) -> str:
    """As much of a text as fits a line."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


HEADER = re.compile(r"^(?:#|//) (flexc kernel|mask:|score:) (.*)$", re.MULTILINE)


def described(source: str) -> str:
    """A kernel's name, and the mask and score that it is for, as its header says."""
    lines = source.lstrip().partition("\n\n")[0]
    said = dict(HEADER.findall(lines))
    name = said.pop("flexc kernel", "a kernel").partition(",")[0]
    about = ", ".join(f"{what} {text}" for what, text in said.items())
    return f"{name} ({about})" if about else name
