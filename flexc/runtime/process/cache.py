"""Files that outlive a process: kernel specs, sources, shared objects, tapes.

The directory is `$FLEXC_CACHE_DIR`, or `flexc` in the user's cache directory. Only its
owner may read or write the directory. An entry is created atomically and ends in a
seal: a digest of its name and content. An entry counts as missing if it is damaged, was
moved, or could have been written by another user. It is then made anew.

`$FLEXC_CACHE_SIZE` limits the size, by default to "2G". A process measures the
directory when it first stores an entry, and again once the sizes that it knows exceed
the limit. Entries are removed by the time of their last use, oldest first, down to a
part of the limit. An entry used in the last minute is not removed, as another process
may be about to load the entry.

`versions` is a part of the keys: the versions of all software that affects a kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import torch

from flexc.errors import OptionError

PACKAGE = Path(__file__).parents[2]


@cache
def versions() -> str:
    """Return the versions of all software that affects a kernel."""
    found = [f"{p}={_version(p)}" for p in ("xdsl", "torch", "triton")]
    found += [f"git={torch.version.git_version}", f"python={platform.python_version()}"]
    return " ".join([*found, f"flexc={own_digest()}"])


def own_digest() -> str:
    """Return a digest of flexc's files. A checkout may change without its version."""
    digest, root = hashlib.sha256(), str(PACKAGE)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in sorted(os.path.join(folder, name) for name in files):
            if path.endswith((".py", ".h")):
                digest.update(path.removeprefix(root).encode())
                with open(path, "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except Exception:
        return "none"


def has_entry_point() -> bool:
    """Return True if torch.compile finds flexc's backend by its entry point."""
    try:
        found = distribution("flexc").entry_points
    except PackageNotFoundError:
        return False
    return any(point.group == "torch_dynamo_backends" for point in found)


DEFAULT = "2G"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

KEPT = 0.8
"""The part of the limit that remains after a removal of entries."""

IN_USE = 60
"""The seconds for which a used entry is kept, regardless of the limit."""


NAME = re.compile(r".+-[0-9a-f]{32}([0-9a-f]{32})?\.(json|py|so|o)", re.DOTALL)
"""The names of entries: a label, a digest and a suffix. Other files are not flexc's."""


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache."""

    path: Path
    size: int
    used: float
    """The time of the last use, in seconds since the epoch."""


def limit() -> int:
    """Return the largest size of the cache in bytes. Raise OptionError if malformed."""
    asked = os.environ.get("FLEXC_CACHE_SIZE") or DEFAULT
    found = re.fullmatch(r"(\d+)([KMGT]?)", asked.strip().upper())
    if found is None:
        raise OptionError(
            "FLEXC_CACHE_SIZE expects a number of bytes, with K, M, G or T behind it "
            f'for larger units, such as "{DEFAULT}", got {asked!r}'
        )
    return int(found[1]) * UNITS[found[2]]


def entries(directory: Path) -> list[CacheFile]:
    """Return the entries of a cache, the last used first."""
    with suppress(FileNotFoundError):  # The cache may be removed at any time.
        return sorted(_entries(directory), key=lambda entry: -entry.used)
    return []


def _entries(directory: Path) -> Iterator[CacheFile]:
    with os.scandir(directory) as files:
        for file in files:
            with suppress(OSError):  # The file was removed meanwhile.
                if NAME.fullmatch(file.name) and file.is_file():
                    info = file.stat(follow_symlinks=False)
                    yield CacheFile(Path(file.path), info.st_size, info.st_mtime)


def touch(path: Path) -> None:
    """Set the time of an entry's last use."""
    with suppress(OSError):  # The cache may be read-only.
        os.utime(path)


_known: dict[Path, int] = {}
"""The number of bytes in each directory, as far as this process knows."""


def make_room(directory: Path, added: int) -> None:
    """Remove the least recently used entries if `added` bytes exceed the limit."""
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


def _shrink(found: list[CacheFile], size: int, wanted: int) -> int:
    """Remove the oldest entries until `wanted` bytes remain. Return the new size."""
    latest = time.time() - IN_USE
    for entry in reversed(found):
        if size <= wanted or entry.used > latest:
            break
        with suppress(OSError):
            entry.path.unlink(missing_ok=True)
            size -= entry.size
    return size


SEAL = "\n# sha256 {}\n"
"""The end of an entry. It is a comment in Python, and loaders of objects ignore it."""

SEAL_SIZE = len(SEAL.format("0" * 64))

UNFINISHED = ".new-"
"""The start of the names of directories with unfinished files."""

ABANDONED = 24 * 3600
"""The seconds after which an unfinished file counts as left by a dead process."""

ADVICE = "set FLEXC_CACHE_DIR to a directory of your own that can be written to"


def cache_dir() -> Path:
    """Return the cache directory. It is created if needed, for its owner only.

    Raise OptionError if it cannot be created, or belongs to another user.
    """
    chosen = _chosen()
    try:
        path = Path(os.path.abspath(chosen))
        _check_links(path)
        path = path.resolve()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = path.stat()
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError.
        why = getattr(error, "strerror", None) or error
        raise OptionError(
            f"the cache directory {chosen} cannot be made ({why}); {ADVICE}"
        ) from error
    if info.st_uid != os.geteuid():
        raise OptionError(
            f"the cache directory {path} belongs to another user; {ADVICE}"
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        with _writing_to(path):
            path.chmod(0o700)
    return path


def _chosen() -> str:
    chosen = os.environ.get("FLEXC_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        chosen = os.path.join(base, "flexc")
    expanded = os.path.expanduser(chosen)
    if expanded.startswith("~"):
        raise OptionError(
            f"the cache directory {chosen} is in a home directory that is not known; "
            f"{ADVICE}"
        )
    return expanded


def _check_links(path: Path) -> None:
    """Refuse a path with a symbolic link that another user may change."""
    for part in (path, *path.parents):
        with suppress(FileNotFoundError):
            info = part.lstat()
            if stat.S_ISLNK(info.st_mode) and info.st_uid not in (0, os.geteuid()):
                raise OptionError(
                    f"the cache directory {path} is reached by another user's "
                    f"symbolic link {part}; {ADVICE}"
                )


@contextmanager
def _writing_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"the cache directory {directory} cannot be written to "
            f"({error.strerror or error}); make room there, or {ADVICE}"
        ) from error


def load(name: str, used: bool = True) -> bytes | None:
    """Return an entry's content, None if it is missing or invalid.

    Without `used`, the time of its last use is unchanged.
    """
    path = cache_dir() / name
    entry = _read_own(path)
    if entry is None:
        return None
    data = entry[:-SEAL_SIZE]
    if entry != _sealed(name, data):
        return None
    if used:
        touch(path)
    return data


def store(name: str, data: bytes) -> Path:
    """Store an entry, unless the same content is there already. Return its path."""
    path = cache_dir() / name
    if load(name) == data:
        return path
    with workspace() as directory:
        new = directory / "entry"
        new.touch(mode=0o600)
        new.write_bytes(_sealed(name, data))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        new.replace(path)
    make_room(path.parent, len(data))
    return path


def _sealed(name: str, data: bytes) -> bytes:
    digest = hashlib.sha256(name.encode() + b"\0" + data).hexdigest()
    return data + SEAL.format(digest).encode()


def _read_own(path: Path) -> bytes | None:
    """Return the content of a file that only this user can have written, else None."""
    try:
        with open(path, "rb", opener=_open) as file:
            info = os.fstat(file.fileno())
            own = info.st_uid == os.geteuid() and not info.st_mode & 0o022
            return file.read() if own and stat.S_ISREG(info.st_mode) else None
    except OSError:
        return None


def _open(path: str, flags: int) -> int:
    # Links are refused, and opening a pipe does not block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@contextmanager
def workspace() -> Iterator[Path]:
    """Make a temporary directory within the cache, and remove it at the end."""
    parent = cache_dir()
    with _writing_to(parent):
        if parent not in _known:  # Once a process.
            _remove_abandoned(parent)
        path = Path(tempfile.mkdtemp(dir=parent, prefix=UNFINISHED))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    """Remove unfinished files of processes that died."""
    latest = time.time() - ABANDONED
    for path in directory.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < latest:
                _remove(path)


def clear_cache() -> None:
    """Remove all entries, but no other files, nor the unfinished files of others."""
    directory = cache_dir()
    for path in directory.iterdir():
        if NAME.fullmatch(path.name):
            _remove(path)
    _remove_abandoned(directory)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
