"""Programs of tests, whose problems are small, as large problems have them too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexc.passes.targets import gluon
from flexc.runtime.kernels import driver
from flexc.runtime.replay import repeats


def forget() -> None:
    """Forget what depends on the numbers that fixtures replace."""
    driver._traced.clear()
    repeats.KNOWN.clear()


@pytest.fixture
def many_short_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls have the programs of large batches: more than run at once."""
    forget()
    monkeypatch.setattr(gluon, "rows_of_a_program", lambda *sizes: None)
    yield
    forget()


@pytest.fixture
def many_programs(monkeypatch: pytest.MonkeyPatch, many_short_programs: None) -> None:
    """Calls have the programs of large batches with many keys."""
    monkeypatch.setattr(gluon, "FEW_KEYS", {})


@pytest.fixture(autouse=True)
def _programs_of_large_calls(request: pytest.FixtureRequest) -> None:
    """Two of three sets of a test's parameters, which differ in their programs."""
    found = getattr(request.node, "callspec", None)
    kind = sum(found.indices.values()) % 3 if found is not None else 0
    if kind:
        names = "many_programs", "many_short_programs"
        request.getfixturevalue(names[kind - 1])
