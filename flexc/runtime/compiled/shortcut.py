"""Calls of a compiled function without a walk, where nothing has changed since one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexc.frontend.plain_values import BY_VALUE, number_key
from flexc.runtime.compiled.function_state import (
    PLAIN_TENSORS,
    CallState,
    global_state,
)
from flexc.runtime.compiled.function_trace import Trace
from flexc.runtime.compiled.record import Record, UnrecordableError
from flexc.runtime.replay.equal_facts import MOST_GUARDS, Guard

MAX_CALLS = 1024
"""Classes of calls that are told apart while nothing changes."""

MOST_PATIENCE = 1024

NUMBERS = frozenset({int, float})
LEAVES = frozenset(BY_VALUE)


class _Ready(NamedTuple):
    """A trace, and how the values that its graph takes are found."""

    trace: Trace
    values: list[Any]
    """Numbers; what there is in the place of a tensor does not matter."""
    given: list[tuple[int, int]]
    """Of which value which argument is the tensor."""
    captured: list[tuple[int, int]]
    """Of which value which captured tensor is."""


class _Guarded(NamedTuple):
    """Finds what is ready without a key, for calls of equal facts."""

    names: tuple[str, ...]
    state: tuple[Any, ...]
    guard: Guard
    tensors: list[int]
    """Which arguments are tensors."""
    ready: _Ready

    def fits(self, names: tuple[str, ...], values: Sequence[Any]) -> bool:
        return (
            self.names == names
            and self.guard.holds(values)
            and self.state == global_state()
            and not any([values[i].__dict__ for i in self.tensors])
        )


class _Known(NamedTuple):
    """What serves calls for as long as a record holds."""

    record: Record
    captured: list[weakref.ref[Tensor]]
    ready: dict[Any, _Ready]
    guarded: list[_Guarded]
    """The first of `ready` that were asked for twice."""

    def find(
        self, leaves: Sequence[Any], names: tuple[str, ...]
    ) -> tuple[_Ready, list[Tensor | None]] | None:
        """Return what is ready and the captured tensors, None if nothing is ready."""
        captured = [ref() for ref in self.captured]
        values = (*leaves, *captured)
        for guarded in self.guarded:
            if guarded.fits(names, values):
                return guarded.ready, captured
        key = _key(leaves, names, captured)
        ready = None if key is None else self.ready.get(key)
        if ready is None:
            return None
        if len(self.guarded) < MOST_GUARDS and (guard := Guard.of(values)) is not None:
            tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
            found = _Guarded(names, global_state(), guard, tensors, ready)
            self.guarded.append(found)
        return ready, captured


class Shortcut:
    """From arguments to a trace while a record of the last walk holds."""

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._served = 0
        self._patience = 1
        """How many walks it takes until another record is made."""
        self._walks = 0

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Trace, list[Any]] | None:
        """A call's trace and values for its graph; None where a walk has to find it."""
        known = self._known
        if known is None:
            return None
        leaves = (*args, *kwargs.values()) if kwargs else args
        found = known.find(leaves, tuple(kwargs))
        if found is None or not self._holds(known):
            return None
        ready, captured = found
        values = ready.values.copy()
        for place, leaf in ready.given:
            values[place] = leaves[leaf]
        for place, slot in ready.captured:
            values[place] = captured[slot]
        return ready.trace, values

    def note(self, state: CallState, trace: Trace) -> None:
        """Have later calls take the way of one that was walked."""
        _, args, kwargs = state.parts
        leaves = (*args, *kwargs.values())
        names = tuple(kwargs)
        if _key(leaves, names, []) is None:
            return
        known = self._known
        if known is None or not self._holds(known):
            known = self._start(state, leaves)
        if known is None:
            return
        captured = [ref() for ref in known.captured]
        key = _key(leaves, names, captured)
        if key is not None:
            ready = _ready(state, trace, leaves, captured)
            if len(known.ready) >= MAX_CALLS:
                known.ready.clear()
                known.guarded.clear()
            known.ready[key] = ready

    def _holds(self, known: _Known) -> bool:
        if known.record.holds():
            self._served += 1
            return True
        # Records of what always changes would be made in vain.
        patience = 2 * self._patience if self._served <= self._patience else 1
        self._patience = min(patience, MOST_PATIENCE)
        self._known, self._served, self._walks = None, 0, 0
        return False

    def _start(self, state: CallState, leaves: Sequence[Any]) -> _Known | None:
        """A new record, made of another walk that comes to the same key."""
        self._walks += 1
        if self._walks <= self._patience:
            return None
        try:
            record = Record(state)
        except UnrecordableError:
            self._patience, self._walks = MOST_PATIENCE, 0
            return None
        given = {id(leaf) for leaf in leaves}
        tensors = [c for c in state.captures if isinstance(c, Tensor)]
        captured = [weakref.ref(t) for t in tensors if id(t) not in given]
        self._known = _Known(record, captured, {}, [])
        return self._known


def _key(
    leaves: Sequence[Any], names: tuple[str, ...], captured: Sequence[Tensor | None]
) -> tuple[Any, ...] | None:
    """All that arguments and captured tensors are; None where a walk is needed."""
    key: list[Any] = [*names, global_state()]
    ids: list[int] = []
    for leaf in leaves:
        kind = type(leaf)
        if kind in PLAIN_TENSORS:
            if leaf.__dict__ or leaf.layout is not torch.strided:
                return None
            ids.append(id(leaf))
            key += (kind, leaf.dtype, leaf.shape, leaf.stride())
            key += (leaf.device, leaf.requires_grad)
        elif kind in NUMBERS:
            key += (kind, number_key(leaf))
        elif kind in LEAVES:
            key += (kind, leaf)
        else:
            return None
    for tensor in captured:
        if tensor is None:
            return None
        ids.append(id(tensor))
        key += (tensor.dtype, tensor.shape, tensor.stride())
        key += (tensor.device, tensor.requires_grad)
    return tuple(key) if len(set(ids)) == len(ids) else None


def _ready(
    state: CallState, trace: Trace, leaves: Sequence[Any], captured: Sequence[Any]
) -> _Ready:
    values = [state.captures[i] for i in trace.inputs]
    places = {id(leaf): i for i, leaf in enumerate(leaves)}
    slots = {id(tensor): i for i, tensor in enumerate(captured)}
    tensors = [(i, id(v)) for i, v in enumerate(values) if isinstance(v, Tensor)]
    given = [(i, places[t]) for i, t in tensors if t in places]
    kept = [(i, slots[t]) for i, t in tensors if t in slots]
    numbers = [None if isinstance(v, Tensor) else v for v in values]
    return _Ready(trace, numbers, given, kept)
