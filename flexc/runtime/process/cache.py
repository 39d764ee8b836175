"""Files that outlive a process: specs of kernels, Python sources, shared objects.

The directory is `$FLEXC_CACHE_DIR`, or `flexc` in the user's cache directory. Nobody
but its owner may read or write it. An entry appears whole or not at all, and ends in a
seal: a digest of its name and content. One that is damaged, that was put in another's
place or that others could have written is as if it were not there: it is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flexc.errors import OptionError
from flexc.runtime.process.eviction import make_room, touch

SEAL = "\n# sha256 {}\n"
"""The end of an entry: a comment of Python's, and behind what is read of an object."""

SEAL_SIZE = len(SEAL.format("0" * 64))

ABANDONED = 24 * 3600
"""Seconds after which a process that left something unfinished is taken for dead."""

ADVICE = "set FLEXC_CACHE_DIR to a directory of your own that can be written to"


def cache_dir() -> Path:
    """The cache directory, made if need be, and its owner's alone."""
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
    """Refuse a way that somebody else may lead elsewhere."""
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
    """An entry's content, if it is there as it was stored.

    What is only looked at is not `used`: it goes no later for that.
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
    """Make an entry, unless it is there with the same content."""
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
    """What is in a file that nobody but this user can have written."""
    try:
        with open(path, "rb", opener=_open) as file:
            info = os.fstat(file.fileno())
            own = info.st_uid == os.geteuid() and not info.st_mode & 0o022
            return file.read() if own and stat.S_ISREG(info.st_mode) else None
    except OSError:
        return None


def _open(path: str, flags: int) -> int:
    # A link is not followed, and nobody is waited for at the end of a pipe.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory of the cache in which files are made, removed in the end."""
    parent = cache_dir()
    with _writing_to(parent):
        _remove_abandoned(parent)
        path = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    """Remove what was left unfinished by processes that died."""
    latest = time.time() - ABANDONED
    for path in _unfinished(directory):
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < latest:
                _remove(path)


def _unfinished(directory: Path) -> list[Path]:
    return [directory / name for name in os.listdir(directory) if name[0] == "."]


def clear_cache() -> None:
    """Remove all entries; the directory stays, and what others are about to make."""
    directory = cache_dir()
    unfinished = set(_unfinished(directory))
    for path in directory.iterdir():
        if path not in unfinished:
            _remove(path)
    _remove_abandoned(directory)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
