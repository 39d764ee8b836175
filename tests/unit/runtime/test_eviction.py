"""What the cache on disk drops when it is full."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flexc.errors import OptionError
from flexc.runtime.process import cache
from flexc.runtime.process.cache import (
    IN_USE,
    limit,
    load,
    make_room,
    store,
)

KILOBYTE = b"x" * 1000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of which this process knows nothing."""
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_known", {})
    return tmp_path


def aged(path: Path, minutes: int) -> Path:
    """A file that was last used so long ago."""
    then = time.time() - 60 * minutes
    os.utime(path, (then, then))
    return path


def entry(label: str) -> str:
    """The name of an entry."""
    return f"{label}-{'0' * 32}.so"


def names(folder: Path) -> set[str]:
    """The labels of the entries in a folder."""
    return {path.name.partition("-")[0] for path in folder.iterdir()}


def test_the_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in (5, 20, 10, 15):
        aged(store(entry(f"{age}"), KILOBYTE), age)
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "4K")
    store(entry("new"), KILOBYTE)
    assert names(folder) == {"5", "10", "new"}


def test_what_is_used_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in (5, 20, 10, 15):
        aged(store(entry(f"{age}"), KILOBYTE), age)
    assert load(entry("20")) == KILOBYTE
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "4K")
    store(entry("new"), KILOBYTE)
    assert names(folder) == {"5", "20", "new"}


def test_what_is_looked_at_is_not_used(folder: Path) -> None:
    path = aged(store(entry("old"), KILOBYTE), 20)
    before = path.stat().st_mtime
    assert load(entry("old"), used=False) == KILOBYTE
    assert path.stat().st_mtime == before
    load(entry("old"))
    assert path.stat().st_mtime > before + IN_USE


def test_nothing_goes_that_may_be_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "1K")
    store(entry("one"), KILOBYTE)
    store(entry("two"), KILOBYTE)
    assert load(entry("one")) == load(entry("two")) == KILOBYTE


def test_files_that_are_not_entries_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "1K")
    (folder / "thesis.pdf").write_bytes(3 * KILOBYTE)
    aged(folder / "thesis.pdf", 90)
    aged(store(entry("old"), KILOBYTE), 90)
    store(entry("new"), KILOBYTE)
    assert names(folder) == {"thesis.pdf", "new"}


def test_what_others_store_counts_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "3K")
    store(entry("own"), KILOBYTE)
    aged(folder / entry("own"), 5)
    (folder / entry("others")).write_bytes(3 * KILOBYTE)
    aged(folder / entry("others"), 10)
    for name in ("a", "b", "c"):
        store(entry(name), KILOBYTE)
    assert "others" not in names(folder)
    assert {"a", "b", "c"} <= names(folder)


def test_a_cache_that_is_gone(tmp_path: Path) -> None:
    make_room(tmp_path / "absent", 10)


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ("", 2 << 30),
        ("1000", 1000),
        ("3k", 3 << 10),
        ("5M", 5 << 20),
        ("1T", 1 << 40),
    ],
)
def test_limits(asked: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXC_CACHE_SIZE", asked)
    assert limit() == most


@pytest.mark.parametrize("asked", ["much", "-1", "1.5G", "2GB"])
def test_limits_that_are_none(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXC_CACHE_SIZE", asked)
    with pytest.raises(OptionError, match="FLEXC_CACHE_SIZE expects a number of bytes"):
        limit()
