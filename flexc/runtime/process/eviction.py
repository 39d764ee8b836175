"""How large the cache on disk may become, and what goes first when it is full.

`$FLEXC_CACHE_SIZE` is the limit: "2G" where it is not set. An entry's time is that of
its last use. A process looks at the directory when it first stores something, and
again once what it knows of is more than the limit; what others store meanwhile it finds
then. Room is made for some entries to come, oldest ones first, but nothing goes that
was used in the last minute: another process may be about to load it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flexc.errors import OptionError

DEFAULT = "2G"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

KEPT = 0.8
"""What part of the limit is left once room was made."""

IN_USE = 60
"""Seconds for which an entry that was used stays, whatever the limit is."""


@dataclass(frozen=True)
class Entry:
    """A file of the cache."""

    path: Path
    size: int
    used: float
    """When it was last used, in seconds since the epoch."""


def limit() -> int:
    """How many bytes the cache may hold."""
    asked = os.environ.get("FLEXC_CACHE_SIZE") or DEFAULT
    found = re.fullmatch(r"(\d+)([KMGT]?)", asked.strip().upper())
    if found is None:
        raise OptionError(
            "FLEXC_CACHE_SIZE expects a number of bytes, with K, M, G or T behind it "
            f'for larger units, such as "{DEFAULT}", got {asked!r}'
        )
    return int(found[1]) * UNITS[found[2]]


def entries(directory: Path) -> list[Entry]:
    """The entries of a cache, the last used first; not what is being written."""
    with suppress(FileNotFoundError):  # The cache may be removed at any time.
        return sorted(_entries(directory), key=lambda entry: -entry.used)
    return []


def _entries(directory: Path) -> Iterator[Entry]:
    with os.scandir(directory) as files:
        for file in files:
            with suppress(OSError):  # Gone meanwhile.
                if not file.name.startswith(".") and file.is_file():
                    info = file.stat(follow_symlinks=False)
                    yield Entry(Path(file.path), info.st_size, info.st_mtime)


def touch(path: Path) -> None:
    """Note that an entry was used."""
    with suppress(OSError):  # A cache that can only be read serves too.
        os.utime(path)


_known: dict[Path, int] = {}
"""How many bytes there are in a directory, as far as this process knows."""


def make_room(directory: Path, added: int) -> None:
    """Remove what was not used for longest, if `added` bytes were too many."""
    most = limit()
    if directory in _known:
        _known[directory] += added
        if _known[directory] <= most:
            return
    found = entries(directory)
    size = sum(entry.size for entry in found)
    if size > most:
        size = _shrink(found, size, int(KEPT * most))
    _known[directory] = size


def _shrink(found: list[Entry], size: int, wanted: int) -> int:
    """Remove the oldest entries until `wanted` bytes are left; how many are."""
    latest = time.time() - IN_USE
    for entry in reversed(found):
        if size <= wanted or entry.used > latest:
            break
        with suppress(OSError):
            entry.path.unlink(missing_ok=True)
            size -= entry.size
    return size
