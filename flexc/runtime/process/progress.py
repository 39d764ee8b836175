"""A message about the kernels being compiled, shown after a second.

If stderr is a terminal and `rich` is installed, the message is a spinner. Otherwise it
is a warning of the logger "flexc", which Python prints by default.
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
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 1.0
"""The seconds of compilation before a message is shown."""

WIDEST = 100
"""The largest number of characters of the description of one kernel."""

log = logging.getLogger("flexc")


@dataclass
class Compilation:
    """The compilation of a kernel, which several threads may continue in turn."""

    what: Callable[[], str]
    """Describes the kernel."""
    since: float = field(default_factory=time.monotonic)
    """Its start, by `time.monotonic`."""
    logged: bool = False
    """True once the log has its description."""

    def log_seconds(self) -> None:
        """Log the seconds since the start."""
        if log.isEnabledFor(logging.INFO):
            seconds = time.monotonic() - self.since
            log.info("%s is ready after %.1f s", shortened(self.what()), seconds)


class Progress:
    """The compilations of all threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[threading.Timer] = set()
        self.shown: dict[threading.Timer, str] = {}
        """The descriptions that are shown, by timer."""
        self.spinner: Any = None

    def begin(self, compilation: Compilation) -> threading.Timer:
        """Register a compilation, to be shown PATIENCE seconds after its start."""
        left = max(compilation.since + PATIENCE - time.monotonic(), 0.0)
        timer = threading.Timer(left, lambda: self.show(timer, compilation))
        timer.daemon = True
        with self.lock:
            self.running.add(timer)
        timer.start()
        return timer

    def show(self, timer: threading.Timer, compilation: Compilation) -> None:
        what = shortened(compilation.what())
        with self.lock:
            if timer not in self.running:
                return
            self.shown[timer] = what
            if self.spinner is None:
                self.spinner = spinner()
            if self.spinner is not None:
                self.spinner.update(self.markup)
                self.spinner.start()
            elif not compilation.logged:
                compilation.logged = True
                log.warning("compiling %s", what)

    def end(self, timer: threading.Timer) -> None:
        """Remove a compilation, and its description if it is shown."""
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
        """The text with brackets escaped, as rich's markup requires."""
        return self.text.replace("[", "\\[")

    @property
    def text(self) -> str:
        return f"flexc: compiling {', '.join(self.shown.values())}"


def spinner() -> Any:
    """Return a spinner of rich, None without a terminal or without rich."""
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
    """Forget the compilations of the parent's threads in a forked child."""
    global _progress
    _progress = Progress()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def compiling(compilation: Compilation) -> Iterator[None]:
    """Show a message while the block runs, if the compilation takes long.

    Nested compilations are part of the outer one and have no message.
    """
    if _thread.busy:
        yield
        return
    progress = _progress
    timer = progress.begin(compilation)
    _thread.busy = True
    try:
        yield
    finally:
        _thread.busy = False
        progress.end(timer)


def shortened(text: str) -> str:
    """Return a text, shortened to WIDEST characters."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


HEADER = re.compile(r"^(?:#|//) (flexc kernel|mask:|score:) (.*)$", re.MULTILINE)


def described(source: str) -> str:
    """Return a kernel's name with its mask and score, read from the source's header."""
    lines = source.lstrip().partition("\n\n")[0]
    said = dict(HEADER.findall(lines))
    name = said.pop("flexc kernel", "a kernel").partition(",")[0]
    about = ", ".join(f"{what} {text}" for what, text in said.items())
    return f"{name} ({about})" if about else name
