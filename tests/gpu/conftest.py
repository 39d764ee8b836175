"""Programs of tests, whose problems are small, as large problems have them too."""

from __future__ import annotations

import zlib

import pytest

from flexc.runtime import call


@pytest.fixture
def many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have the programs that they would have if those were too many at once."""
    monkeypatch.setattr(call, "rows_at_once", lambda *sizes: None)


@pytest.fixture(autouse=True)
def _half_have_many_programs(request: pytest.FixtureRequest) -> None:
    """Half of the tests, the same at every run."""
    if zlib.crc32(request.node.name.encode()) % 2:
        request.getfixturevalue("many_programs")
