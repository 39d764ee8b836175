"""Fixtures that tests of the runtime share."""

from __future__ import annotations

from typing import Any

import pytest

from flexc.runtime import growing
from flexc.runtime.attention import run as running
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd.gradient_kernels import DerivativeRun
from flexc.runtime.replay import repeats
from flexc.runtime.replay.equal_facts import FactsCache


@pytest.fixture
def known() -> FactsCache:
    """What is kept for facts, nothing at first."""
    repeats.KNOWN.clear()
    growing.clear()
    return repeats.KNOWN


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """The calls that no tape has served."""
    calls: list[Attention] = []
    own = running.execute

    def execute(call: Attention, results: Any) -> None:
        calls.append(call)
        own(call, results)

    monkeypatch.setattr(running, "execute", execute)
    return calls


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[DerivativeRun]:
    """The backwards that no tape has served."""
    made: list[DerivativeRun] = []
    own = DerivativeRun.backward

    def backward(self: DerivativeRun, *args: Any) -> Any:
        made.append(self)
        return own(self, *args)

    monkeypatch.setattr(DerivativeRun, "backward", backward)
    return made
