"""Work that leaves little garbage, beside much that a collector would look at."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def without_collection() -> Iterator[None]:
    """Import, trace, lower or wait for that without looking for garbage.

    There is one collector, which other threads than the main one leave as it is.
    """
    if not gc.isenabled() or current_thread() is not main_thread():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
