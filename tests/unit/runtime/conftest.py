"""Fixtures that tests of the runtime share."""

from __future__ import annotations

from typing import Any

import pytest

from flexc.runtime import repeats
from flexc.runtime.call import Attention
from flexc.runtime.equal_facts import Kept
from flexc.runtime.gradients.kernels import Run


@pytest.fixture
def known() -> Kept:
    """What is kept for facts, nothing at first."""
    repeats.KNOWN.clear()
    return repeats.KNOWN


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """The calls that no tape has served."""
    calls: list[Attention] = []
    own = Attention.execute

    def execute(self: Attention, results: Any) -> None:
        calls.append(self)
        own(self, results)

    monkeypatch.setattr(Attention, "execute", execute)
    return calls


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The backwards that no tape has served."""
    made: list[Run] = []
    own = Run.backward

    def backward(self: Run, *args: Any) -> Any:
        made.append(self)
        return own(self, *args)

    monkeypatch.setattr(Run, "backward", backward)
    return made
