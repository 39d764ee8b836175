"""Files that outlive a process: emitted sources, specs and shared objects.

The directory is `$FLEXC_CACHE_DIR`, or `flexc` in the user's cache directory. It
is readable by its owner only, and files appear in it whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from flexc.errors import OptionError


def cache_dir() -> Path:
    """The cache directory, made if need be."""
    chosen = os.environ.get("FLEXC_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        chosen = os.path.join(base, "flexc")
    return _private_dir(os.path.expanduser(chosen))


@cache
def _private_dir(name: str) -> Path:
    path = Path(name).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = path.stat()
    except OSError as error:
        raise OptionError(
            f"the cache directory {path} cannot be made ({error.strerror}); set "
            "FLEXC_CACHE_DIR to a directory that can be written to"
        ) from error
    if info.st_uid != os.getuid():
        raise OptionError(
            f"the cache directory {path} belongs to another user; set "
            "FLEXC_CACHE_DIR to a directory of your own"
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def store_bytes(name: str, data: bytes) -> Path:
    """Write a file into the cache unless it is there with the same content."""
    path = cache_dir() / name
    if path.exists() and path.read_bytes() == data:
        return path
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        raise OptionError(
            f"the cache directory {path.parent} cannot be written to "
            f"({error.strerror}); set FLEXC_CACHE_DIR to another"
        ) from error
    return path


def store_text(name: str, text: str) -> Path:
    """Write a text file into the cache."""
    return store_bytes(name, text.encode())


def load_text(name: str) -> str | None:
    """A text file of the cache, if it is there and is text."""
    try:
        return (cache_dir() / name).read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def clear_cache() -> None:
    """Remove all files of the cache; the directory stays."""
    for path in cache_dir().iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
