"""What a walk over a compiled function has found, to know that it would find it again.

A walk looks into functions, variables, objects, classes and containers. A `Record`
keeps where it looked and which objects were there. While these are the same ones,
another walk would come to the same key: all that is left to look at are arguments and
tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.code_facts import code_facts
from flexc.frontend.plain_values import BY_VALUE
from flexc.frontend.special_methods import (
    KNOWN_METACLASSES,
    has_unread_code,
    is_plain,
    is_trusted,
    is_trusted_module,
    trusted_class,
)
from flexc.runtime.compiled.function_state import (
    CallState,
    CallWalk,
    Compiled,
    is_own,
)

Ids = tuple[int, ...]

CONSTANT = frozenset(
    {*BY_VALUE, tuple, int, float, CodeType, BuiltinFunctionType, MethodType}
)
"""Types of what does not change itself."""


class UnrecordableError(Exception):
    """A walk met what a record does not know how to look at."""


class _Table(NamedTuple):
    """Some members of a dictionary of attributes or variables."""

    held: Mapping[str, Any]
    keys: tuple[str, ...] | None
    """All keys; None where others may come and go."""
    names: tuple[str, ...]
    ids: Ids


class _Reading(CallWalk):
    """A walk that notes whatever it meets."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[int, Any] = {}

    def visit(self, value: Any) -> Any:
        self.met[id(value)] = value
        return super().visit(value)


class Record:
    """Where a walk over a function and plain arguments has looked.

    Raises:
        UnrecordableError: where more may change than what is looked at here.
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
        """What is the same as long as its address is; tensors may go."""
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
        """Whether all is as it was."""
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
        except (RuntimeError, ValueError):  # Of another thread, or an empty cell.
            return False

    def _read_variables(self) -> list[int]:
        parts = [id(part) for f in self._functions for part in _parts(f)]
        return parts + [id(cell.cell_contents) for cell in self._cells]

    def _keep(self, values: Iterable[Any]) -> Ids:
        values = list(values)
        self._kept += [v for v in values if not isinstance(v, Tensor)]
        return tuple(map(id, values))

    def _note(self, value: Any) -> None:
        """Note what a walk looks at in a value."""
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
        """The attributes of a class that code names, of a user's all."""
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
        """Note members of what a dictionary or, of a class, its view shows."""
        names = tuple(names)
        ids = self._keep([held.get(name) for name in names])
        self._kept.append(held)
        place = (id(held if owner is None else owner), names)
        self._tables[place] = _Table(held, keys, names, ids)


def _parts(fn: FunctionType) -> Sequence[Any]:
    return fn.__code__, fn.__defaults__, fn.__kwdefaults__
