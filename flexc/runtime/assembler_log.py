"""What ptxas says of a kernel that Triton compiles, on this thread and now.

Triton prints that to stdout if it is told to, for all threads. Here its compiler's own
`print` is told apart by thread: what others compile meanwhile is not printed, unless
the user asked for that.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import knobs
from triton.backends import backends


@dataclass(frozen=True)
class Knob:
    """A setting of Triton, which is a variable of the environment as well."""

    group: Any
    name: str
    variable: str


LOG = Knob(knobs.nvidia, "dump_ptxas_log", "TRITON_DUMP_PTXAS_LOG")
ALWAYS = Knob(knobs.compilation, "always_compile", "TRITON_ALWAYS_COMPILE")
"""A kernel of Triton's cache is not compiled again, and nothing is said of it."""

_lock = threading.Lock()
_collecting = threading.local()
_collectors = 0
_before: list[Any] = []


def _renew() -> None:
    """In a child nobody lets go of what its parent's threads held."""
    global _lock, _collectors
    _lock = threading.Lock()
    if _collectors:
        _collectors = 1
        _leave()


os.register_at_fork(after_in_child=_renew)


@contextmanager
def assembler_log() -> Iterator[list[str]]:
    """Everything is compiled anew; what ptxas says of it goes to the list."""
    parts: list[str] = []
    _enter()
    _collecting.parts = parts
    try:
        yield parts
    finally:
        _collecting.parts = None
        _leave()


def _enter() -> None:
    global _collectors
    with _lock:
        _collectors += 1
        if _collectors > 1:
            return
        for knob in (LOG, ALWAYS):
            _before.append((knob, knob.name in vars(knob.group), _value(knob)))
            _before[-1] += (os.environ.get(knob.variable),)
            setattr(knob.group, knob.name, True)
        _compiler().print = _print


def _leave() -> None:
    global _collectors
    with _lock:
        _collectors -= 1
        if _collectors:
            return
        del _compiler().print
        for knob, was_set, value, variable in _before:
            if was_set:
                setattr(knob.group, knob.name, value)
            else:
                delattr(knob.group, knob.name)
            if variable is None:
                os.environ.pop(knob.variable, None)
            else:
                os.environ[knob.variable] = variable
        _before.clear()


def _value(knob: Knob) -> bool:
    return getattr(knob.group, knob.name)


def _compiler() -> Any:
    """Triton's module that runs ptxas."""
    return sys.modules[backends["nvidia"].compiler.__module__]


def _print(*args: Any, **kwargs: Any) -> None:
    parts = getattr(_collecting, "parts", None)
    if parts is not None:
        parts.append(" ".join(map(str, args)))
    before = list(_before)  # Another thread may be about to end.
    if before and before[0][2]:  # The user asked for it.
        builtins.print(*args, **kwargs)
