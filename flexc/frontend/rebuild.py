"""The same mods over other values: functions and objects copied, never mutated."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from flexc.frontend.special_methods import HEAP_TYPE, own_attributes
from flexc.frontend.walk import Capture, Walk


class Rebuild(Walk):
    """Walks as `Walk` does, in the same order, and copies what it meets."""

    def __init__(self, values: Sequence[Any]):
        super().__init__()
        self._values = values
        self.names: list[str] = []
        self.codes: set[CodeType] = set()
        """Of all functions that were met."""

    def slot(self, slot: int, value: Capture) -> Any:
        if slot == len(self.names):
            self.names.append(self.name)
        return self._values[slot]

    def remake(self, value: Any, parts: Any) -> Any:
        match value:
            case functools.partial():
                func, args, keywords = parts
                copy = functools.partial(func, *args, **keywords)
                vars(copy).update(vars(value))
                return copy
            case MethodType():
                return MethodType(*parts)
            case tuple() if hasattr(value, "_make"):
                return tuple.__new__(type(value), parts)
            case _:
                return type(value)(parts)

    def begin(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            self.codes.add(value.__code__)
            return _copy_function(value)
        if isinstance(value, ModuleType):
            module = ModuleType(value.__name__)
            module.__dict__.update(vars(value))
            return module
        return _copy_object(value)

    def fill_function(
        self, copy: Any, cells: Any, globals_: Any, defaults: Any
    ) -> None:
        for cell, content in zip(copy.__closure__ or (), cells, strict=True):
            if content is not CellType:
                cell.cell_contents = content
        copy.__globals__.update(globals_)
        copy.__defaults__, copy.__kwdefaults__ = defaults

    def fill_attribute(self, copy: Any, name: str, value: Any, table: str) -> None:
        if table:
            held = vars(copy)[table]
            vars(copy)[table] = type(held)(held) | {name: value}
        elif name in own_attributes(copy):
            vars(copy)[name] = value
        else:
            object.__setattr__(copy, name, value)


class Freeze(Rebuild):
    """Copies mods that outlive a call: functions hold the globals that they name."""

    def begin(self, value: Any) -> Any:
        if not isinstance(value, FunctionType):
            return super().begin(value)
        held, names = value.__globals__, _names_in(value.__code__)
        return _copy_function(value, {n: held[n] for n in names if n in held})


def _names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code, and in code within it."""
    within = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names, "__builtins__"}.union(*map(_names_in, within))


def _copy_function(
    fn: FunctionType, held: dict[str, Any] | None = None
) -> FunctionType:
    """Return a copy with empty cells, and with its globals or those given."""
    cells = tuple(CellType() for _ in fn.__closure__ or ())
    held = dict(fn.__globals__) if held is None else held
    copy = FunctionType(fn.__code__, held, fn.__name__, None, cells or None)
    copy.__qualname__, copy.__module__ = fn.__qualname__, fn.__module__
    copy.__dict__.update(fn.__dict__)
    return copy


def _copy_object(value: Any) -> Any:
    cls = type(value)
    heap = cls.__flags__ & HEAP_TYPE
    copy: Any = object.__new__(cls) if heap else cls()
    own_attributes(copy).update(own_attributes(value))
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                object.__setattr__(copy, name, getattr(value, name))
    return copy
