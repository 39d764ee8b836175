"""Texts of keys that mean the same in every process.

A key in memory holds objects: code, modules, functions of torch. What another process
can find again is spelled by its name, code by its bytecode and constants. Everything
else is known by its identity alone, and such a key has no text.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from flexc.frontend.code_facts import trusted
from flexc.frontend.plain_values import BY_VALUE
from flexc.frontend.special_methods import is_trusted_module, trusted_class

ATOMS = frozenset({*BY_VALUE, int, float})
"""Types of values that `repr` tells apart."""


class UnstableError(Exception):
    """A part of a key is known by its identity."""


def stable_text(value: Any) -> str:
    """Return a text that is equal for equal keys, in other processes too.

    Raises:
        UnstableError: where a part of the key has no such text.
    """
    kind = type(value)
    if kind in ATOMS:
        return f"{kind.__name__} {value!r}"
    if kind is tuple or kind is torch.Size:
        return f"({', '.join(map(stable_text, value))})"
    if kind is CodeType:
        return f"code {stable_text(_parts_of(value))}"
    if is_dataclass(value) and kind.__module__.startswith("flexc."):
        held = tuple(getattr(value, field.name) for field in fields(value))
        return f"{kind.__qualname__} {stable_text(held)}"
    return f"{kind.__name__} {_name_of(value)}"


def _parts_of(code: CodeType) -> tuple[Any, ...]:
    """Return what decides what code computes: not its name, nor where it is."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    rest = (code.co_flags, code.co_exceptiontable)
    return (code.co_code, code.co_consts, *names, *counts, *rest)


def _name_of(value: Any) -> str:
    """Return the name by which a module of a trusted package has an object."""
    if isinstance(value, ModuleType) and is_trusted_module(value):
        return value.__name__
    if isinstance(value, type) and trusted_class(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, FunctionType | BuiltinFunctionType):
        module = value.__module__
        if isinstance(module, str) and trusted(module):
            for name in (value.__qualname__, value.__name__):
                if _find(module, name) is value:
                    return f"{module}.{name}"
    raise UnstableError(repr(value))


def _find(module: str, name: str) -> Any:
    """Return what a module has by a name, None if it has nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
