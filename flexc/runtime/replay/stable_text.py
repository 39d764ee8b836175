"""Texts of keys that mean the same in every process.

A key in memory holds objects: code, modules, functions of torch. Objects that another
process can find again are spelled by name, and code by its bytecode and constants.
Other keys have no text: keys with an object that only its identity distinguishes, and
keys with a function whose results differ among processes.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
)
from typing import Any

import torch

from flexc.frontend.code_facts import (
    BY_VALUE,
    is_trusted,
    is_trusted_module,
    trusted_class,
)

ATOMS = frozenset({*BY_VALUE, int, float})
"""Types of values that `repr` distinguishes."""


COMPUTING = frozenset(
    {
        "_operator",
        "cmath",
        "math",
        "torch._C._linalg",
        "torch._C._nn",
        "torch._C._special",
        "torch.functional",
        "torch.nn.functional",
    }
)
"""Modules whose functions depend on their arguments alone. Functions of torch's other
modules, such as `torch.distributed.get_rank`, may differ among processes.
"""

TENSOR_FUNCTIONS = "_VariableFunctionsClass."
"""The prefix of the qualified names of torch's own functions of tensors."""

_BUILTINS = """
    NoneType abs all any bool bytes cell complex dict divmod ellipsis enumerate filter
    float int len list map max method min pow range reversed round slice sorted str sum
    tuple type zip
"""
BUILTINS = frozenset(_BUILTINS.split())
"""Python's functions and types whose results depend on their arguments alone, unlike
`hash` and the order of sets.
"""

CLASSES = frozenset(
    f"torch.{name}"
    for name in ("Size", "Tensor", "device", "dtype", "finfo", "iinfo", "layout")
) | {"functools.partial", "torch.memory_format"}

UNTOLD = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE", "IMPORT_NAME"})
"""Instructions of code that reads values outside the key, or depends on the order of a
set.
"""


class UnstableError(Exception):
    """A part of a key has only its identity, or differs among processes."""


def stable_text(value: Any) -> str:
    """Return a text that is equal for equal keys, in other processes too.

    Raises:
        UnstableError: if a part of the key has no such text.
    """
    kind = type(value)
    if kind in ATOMS:
        return f"{kind.__name__} {value!r}"
    is_own = kind.__module__.startswith("flexc.")
    if kind is tuple or kind is torch.Size or (is_own and isinstance(value, tuple)):
        return f"({', '.join(map(stable_text, value))})"
    if kind is CodeType:
        return f"code {stable_text(_parts_of(value))}"
    if is_own and is_dataclass(value):
        held = tuple(getattr(value, field.name) for field in fields(value))
        return f"{kind.__qualname__} {stable_text(held)}"
    return f"{kind.__name__} {_name_of(value)}"


def _parts_of(code: CodeType) -> tuple[Any, ...]:
    """Return the parts of code that determine its results."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in UNTOLD:
            raise UnstableError(instruction.opname)
    _check_methods(code.co_names)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    rest = (code.co_flags, code.co_exceptiontable)
    return (code.co_code, code.co_consts, *names, *counts, *rest)


def _name_of(value: Any) -> str:
    """Return the name of an object in a module of a trusted package."""
    if isinstance(value, ModuleType) and is_trusted_module(value):
        return value.__name__
    if isinstance(value, type) and trusted_class(value):
        name = f"{value.__module__}.{value.__qualname__}"
        if name in CLASSES or name.removeprefix("builtins.") in BUILTINS:
            return name
    if isinstance(value, FunctionType | BuiltinFunctionType):
        module, name = value.__module__, value.__name__
        if _computes(value) and getattr(sys.modules.get(module), name, None) is value:
            return f"{module}.{name}{_body_of(value)}"
    raise UnstableError(repr(value))


def _body_of(function: FunctionType | BuiltinFunctionType) -> str:
    """Return a text of a Python function's code, which may have been replaced."""
    if isinstance(function, BuiltinFunctionType):
        return ""
    options = sorted((function.__kwdefaults__ or {}).items())
    return stable_text((function.__code__, function.__defaults__, tuple(options)))


_TENSOR = dict(vars(torch.Tensor))
"""The methods of tensors when this module was imported."""

_FOREIGN = frozenset(
    name
    for name, value in _TENSOR.items()
    if isinstance(value, FunctionType) and not is_trusted(value)
)
"""The methods that were not torch's own at that time."""


def _check_methods(names: Iterable[str]) -> None:
    """Refuse replaced methods of tensors, because keys hold only their names."""
    held = vars(torch.Tensor)
    operators = [name for name in held if name.startswith("__")]
    for name in (*operators, *names):
        value = held.get(name)
        is_own = _TENSOR.get(name) is value and name not in _FOREIGN
        if isinstance(value, FunctionType):
            exchanged = not (is_own or is_trusted(value))
        elif isinstance(value, MethodDescriptorType):
            exchanged = not is_own or (name not in operators and value.__name__ != name)
        else:
            continue
        if exchanged:
            raise UnstableError(f"torch.Tensor.{name}")


def _computes(function: FunctionType | BuiltinFunctionType) -> bool:
    """Return True if a function's results depend on its arguments alone."""
    module = function.__module__
    if module == "builtins":
        return function.__name__ in BUILTINS
    if module == "torch":
        return function.__qualname__.startswith(TENSOR_FUNCTIONS)
    return module in COMPUTING
