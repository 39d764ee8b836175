"""Programs of tests, whose problems are small, as large problems have them too."""

from __future__ import annotations

import pytest

from flexc.passes.targets import gluon


@pytest.fixture
def many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have the programs that they would have if those were too many at once."""
    monkeypatch.setattr(gluon, "rows_of_a_program", lambda *sizes: None)


@pytest.fixture(autouse=True)
def _half_have_many_programs(request: pytest.FixtureRequest) -> None:
    """Every other set of a test's parameters; tests without have their own programs."""
    found = getattr(request.node, "callspec", None)
    if found is not None and sum(found.indices.values()) % 2:
        request.getfixturevalue("many_programs")
