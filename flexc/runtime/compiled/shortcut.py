"""Lookup of a call's trace without a walk, while nothing has changed since a walk.

A walk looks into functions, variables, objects, classes and containers. A `Record`
keeps the places that the walk read and the objects found there. While the objects are
the same, another walk would find the same key, so only arguments and tensors are
compared.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.code_facts import (
    BY_VALUE,
    KNOWN_METACLASSES,
    code_facts,
    has_unread_code,
    is_plain,
    is_trusted,
    is_trusted_module,
    number_key,
    trusted_class,
)
from flexc.runtime.compiled.function_state import (
    PLAIN_TENSORS,
    CallState,
    CallWalk,
    Compiled,
    global_state,
    is_own,
)
from flexc.runtime.compiled.function_trace import Trace
from flexc.runtime.replay.equal_facts import MOST_GUARDS, Guard

Ids = tuple[int, ...]

CONSTANT = frozenset(
    {*BY_VALUE, tuple, int, float, CodeType, BuiltinFunctionType, MethodType}
)
"""Types of values that cannot change."""


class UnrecordableError(Exception):
    """A walk met a value that a record does not support."""


class _Table(NamedTuple):
    """Some members of a dictionary of attributes or variables."""

    held: Mapping[str, Any]
    keys: tuple[str, ...] | None
    """All keys. None if keys may be added and removed."""
    names: tuple[str, ...]
    ids: Ids


class _Reading(CallWalk):
    """A walk that records every value that it visits."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[int, Any] = {}

    def visit(self, value: Any) -> Any:
        self.met[id(value)] = value
        return super().visit(value)


class Record:
    """The places that a walk over a function and plain arguments has read.

    Raises:
        UnrecordableError: if values may change in places that a record does not check.
    """

    def __init__(self, state: CallState):
        walk = _Reading()
        walk.run(state.parts)  # pyright: ignore[reportArgumentType]
        _, args, kwargs = state.parts
        for value in (args, kwargs, *args, *kwargs.values()):
            walk.met.pop(id(value), None)
        self._attributes = walk._attributes
        self._functions: list[FunctionType] = []
        self._objects: list[Any] = []
        self._empty: list[Mapping[Any, Any]] = []
        self._lists: list[tuple[Any, Ids]] = []
        self._tables: dict[Any, _Table] = {}
        self._kept: list[Any] = []
        """Objects kept alive, so that their ids stay unique. Tensors are not among
        them.
        """
        for value in walk.met.values():
            self._note(value)
        for cls in {type(value) for value in self._objects}:
            self._class(cls)
        self._types = list(map(type, self._objects))
        self._cells = [c for f in self._functions for c in f.__closure__ or ()]
        self._variables = self._read_variables()
        self._keep([cell.cell_contents for cell in self._cells])
        tables = self._tables.values()
        self._members = [(t.held.get, name) for t in tables for name in t.names]
        self._ids = [i for t in tables for i in t.ids]
        self._complete = [t.held for t in tables if t.keys is not None]
        self._keys = [t.keys for t in tables if t.keys is not None]

    def holds(self) -> bool:
        """Return True if nothing has changed."""
        try:
            for held, ids in self._lists:
                if tuple(map(id, held)) != ids:
                    return False
            return (
                not any(self._empty)
                and self._read_variables() == self._variables
                and [id(get(name)) for get, name in self._members] == self._ids
                and [tuple(held) for held in self._complete] == self._keys
                and [type(value) for value in self._objects] == self._types
            )
        except (RuntimeError, ValueError):  # A changed dictionary, or an empty cell.
            return False

    def _read_variables(self) -> list[int]:
        parts = [id(part) for f in self._functions for part in _parts(f)]
        return parts + [id(cell.cell_contents) for cell in self._cells]

    def _keep(self, values: Iterable[Any]) -> Ids:
        values = list(values)
        self._kept += [v for v in values if not isinstance(v, Tensor)]
        return tuple(map(id, values))

    def _note(self, value: Any) -> None:
        """Note the places that a walk reads in a value."""
        kind = type(value)
        if (
            kind in CONSTANT
            or isinstance(value, torch._ops.OpOverload)
            or is_own(value)
        ):
            return
        if isinstance(value, Tensor):
            self._whole(value.__dict__)
        elif kind is FunctionType:
            self._function(value)
        elif kind is dict:
            self._whole(value)
        elif kind in (list, set, frozenset):
            self._kept.append(value)
            self._lists.append((value, self._keep(value)))
        elif kind is functools.partial:
            self._whole(value.keywords)
            self._whole(vars(value))
        elif isinstance(value, type):
            if type(value) not in KNOWN_METACLASSES[:2]:
                raise UnrecordableError
            self._class(value)
        elif isinstance(value, ModuleType):
            names = self._attributes & vars(value).keys()
            own = None if is_trusted_module(value) else tuple(vars(value))
            self._table(vars(value), own, names)
        elif kind is BlockMask or isinstance(value, Compiled):
            self._whole(vars(value))
        elif isinstance(value, torch.nn.Module):
            self._module(value)
        elif is_plain(kind) and not any(vars(c).get("__slots__") for c in kind.__mro__):
            self._object(value)
        else:
            raise UnrecordableError

    def _function(self, value: FunctionType) -> None:
        foreign = is_trusted(value)
        if foreign and value.__closure__ is None:
            return
        self._functions.append(value)
        self._keep(_parts(value))
        self._whole(value.__dict__)
        if not foreign:
            names = code_facts(value.__code__).globals
            self._table(value.__globals__, None, names)
            self._table(value.__builtins__, None, names)  # pyright: ignore

    def _module(self, value: torch.nn.Module) -> None:
        for part in vars(value).values():
            if isinstance(part, dict):
                self._whole(part)
        if has_unread_code(type(value)):
            self._whole(vars(value))
        self._object(value)

    def _object(self, value: Any) -> None:
        self._objects.append(value)
        held = vars(value)
        self._table(held, tuple(held), self._attributes & held.keys())

    def _class(self, cls: type) -> None:
        """Note the attributes of a class that code names, or all of a user's class."""
        self._kept.append(cls.__mro__)
        for base in cls.__mro__:
            held = vars(base)
            whole = not trusted_class(base)
            names = held.keys() if whole else self._attributes & held.keys()
            self._table(held, tuple(held), names, base)

    def _whole(self, held: Mapping[Any, Any]) -> None:
        if held:
            self._table(held, tuple(held), held)
        else:
            self._empty.append(held)

    def _table(
        self,
        held: Mapping[Any, Any],
        keys: tuple[Any, ...] | None,
        names: Iterable[Any],
        owner: Any = None,
    ) -> None:
        """Note members of a dictionary, or of a class through its mapping proxy."""
        names = tuple(names)
        ids = self._keep([held.get(name) for name in names])
        self._kept.append(held)
        place = (id(held if owner is None else owner), names)
        self._tables[place] = _Table(held, keys, names, ids)


def _parts(fn: FunctionType) -> Sequence[Any]:
    return fn.__code__, fn.__defaults__, fn.__kwdefaults__


MAX_CALLS = 1024
"""The number of kinds of calls that are cached while nothing changes."""

MOST_PATIENCE = 1024

NUMBERS = frozenset({int, float})
LEAVES = frozenset(BY_VALUE)


class _Ready(NamedTuple):
    """A trace, and the sources of the values that its graph takes."""

    trace: Trace
    values: list[Any]
    """Numbers in their places. The places of tensors are overwritten."""
    given: list[tuple[int, int]]
    """Pairs of a value's place and the argument that is its tensor."""
    captured: list[tuple[int, int]]
    """Pairs of a value's place and the captured tensor that is the value."""


class _Guarded(NamedTuple):
    """A guard that finds a `_Ready` without a key, for calls of equal facts."""

    names: tuple[str, ...]
    state: tuple[Any, ...]
    guard: Guard
    tensors: list[int]
    """Positions of the arguments that are tensors."""
    ready: _Ready

    def fits(self, names: tuple[str, ...], values: Sequence[Any]) -> bool:
        return (
            self.names == names
            and self.guard.holds(values)
            and self.state == global_state()
            and not any([values[i].__dict__ for i in self.tensors])
        )


class _Known(NamedTuple):
    """The state that serves calls for as long as a record holds."""

    record: Record
    captured: list[weakref.ref[Tensor]]
    ready: dict[Any, _Ready]
    guarded: list[_Guarded]
    """Guards for the first entries of `ready` that were looked up twice."""

    def find(
        self, leaves: Sequence[Any], names: tuple[str, ...]
    ) -> tuple[_Ready, list[Tensor | None]] | None:
        """Return a call's entry and the captured tensors, None if there is no entry."""
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
    """A cache from arguments to traces, valid while a record of the last walk holds."""

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._served = 0
        self._patience = 1
        """The number of walks before another record is made."""
        self._walks = 0

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Trace, list[Any]] | None:
        """Return a call's trace and values for its graph, None if a walk is needed."""
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
        """Cache the trace of a call that was walked, for later calls."""
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
        # If records become invalid soon, later records are made less often.
        patience = 2 * self._patience if self._served <= self._patience else 1
        self._patience = min(patience, MOST_PATIENCE)
        self._known, self._served, self._walks = None, 0, 0
        return False

    def _start(self, state: CallState, leaves: Sequence[Any]) -> _Known | None:
        """Return a new record, made by another walk over the same call.

        Return None if it is too early for a record, or if the call cannot have one.
        """
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
    """Return all facts of arguments and captured tensors, None if a walk is needed."""
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
