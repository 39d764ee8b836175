"""Captures of one function for calls of one kind, which differ in sizes and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from torch._dynamo.convert_frame import compile_lock
from torch.fx.experimental import symbolic_shapes

from flexc.runtime.call_symbols import Place, changes, extents, lengths_of
from flexc.runtime.driver import counters
from flexc.runtime.function_state import CallState
from flexc.runtime.function_trace import Trace, trace_function
from flexc.runtime.options import Choices
from flexc.runtime.recent import Recent

MAX_TRACES = 128
"""Captures for one kind of calls; one that needs more is run."""

MAX_FACTS = 1024
"""Sizes and numbers of which it is known what serves them."""

STATIC: frozenset[Place] = frozenset()


class Kind:
    """Captures for calls of one kind, and what serves which.

    Lengths are symbols from the start, other sizes and numbers when they have changed.
    What cannot be traced so is traced for each of its values.
    """

    def __init__(self, first: CallState):
        self._first = extents(first.captures)
        self._lengths = lengths_of(first.captures)
        self._known: Recent[Trace] = Recent(MAX_FACTS)
        self._traces: list[Trace] = []
        self._changed: set[Place] = set()
        self._refused: set[frozenset[Place]] = set()
        """Symbols that a trace did not get by with."""
        self._only_runs = False
        """There is nothing to capture, or there would be too many captures."""

    def trace(self, state: CallState, choices: Choices) -> Trace | None:
        """The capture for a call; None for one that has to be run."""
        if self._only_runs:
            return None
        facts = state.facts
        found = self._known.find(facts)
        if found is not None:
            return found
        with compile_lock:  # Threads that want the same wait for the first one's.
            found = self._find(state) or self._make(state, choices)
        return None if found is None else self._known.add(facts, found)

    def _find(self, state: CallState) -> Trace | None:
        holding = (t for t in self._traces if t.guards.hold(state.captures))
        return next(holding, None)

    def _make(self, state: CallState, choices: Choices) -> Trace | None:
        if len(self._traces) >= MAX_TRACES:
            self._only_runs = True
            return None
        counters["functions traced"] += 1
        for places in self._attempts(state):
            try:
                # What symbols cannot stand for is no news for anybody.
                quiet = patch.object(symbolic_shapes.log, "disabled", bool(places))
                with quiet:
                    found = trace_function(state, choices, places)
            except Exception:
                # Perhaps Python wants a true number; what is wrong for another reason
                # fails again, and is said in terms of numbers then.
                if not places:
                    raise
                found = None
            if found is not None:
                self._traces.append(found)
                return found
            self._refused |= {places} if places else set()
        self._only_runs = True
        return None

    def _attempts(self, state: CallState) -> Iterator[frozenset[Place]]:
        """Which sizes and numbers may be symbols, the most first."""
        self._changed |= changes(self._first, extents(state.captures))
        every = self._lengths | self._changed
        for places in (every, frozenset(p for p in every if p[1] is not None)):
            refused = places in self._refused or state.inspects_types
            if places and not refused:
                yield places
        yield STATIC
