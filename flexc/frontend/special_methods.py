"""Classes of mods' objects: lookup without running code, and calls without names."""

from __future__ import annotations

import builtins
import enum
import functools
import operator
import sys
import typing
from abc import ABC, ABCMeta
from collections import namedtuple
from collections.abc import Sequence
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from flexc.frontend.code_facts import DYNAMIC_NAMES, code_facts, trusted

SILENT_METHODS = frozenset(
    {
        "__class_getitem__",
        "__delattr__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__post_init__",
        "__reduce__",
        "__repr__",
        "__setattr__",
        "__str__",
    }
)
"""Special methods that computing with an object does not call."""

READING_METHODS = frozenset({"__getattr__", "__getattribute__"})
MAKING_METHODS = frozenset({"__init__", "__new__", "__post_init__"})
"""Special methods that reading an attribute calls, and that making an object does."""

MODULE_CALLS = frozenset({"__call__", "_call_impl", "_wrapped_call_impl"})
MODULE_LISTS = frozenset(
    {
        "buffers",
        "children",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "modules",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "state_dict",
    }
)
"""Methods of torch.nn.Module that call it, and that find what they do not name."""

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Where a torch.nn.Module keeps what `__getattr__` finds."""

MEMBERS_OWN = frozenset({"_name_", "__objclass__", "_sort_order_"})
"""What the enum package gives to each member."""

MISSING = object()
C_DESCRIPTORS = (
    type(str.join),
    type(object.__init__),
    type(type.__dict__["__dict__"]),
    MemberDescriptorType,
    type(dict.__dict__["fromkeys"]),
    type(vars(namedtuple("_", "field"))["field"]),
)


DYNAMIC_CALLABLES = frozenset(
    getattr(scope, name)
    for scope in (builtins, operator)
    for name in DYNAMIC_NAMES
    if hasattr(scope, name)
)
"""What code may call by another name than its own."""

KNOWN_MODULES = (ModuleType, type(torch.ops), type(torch.ops.aten))
"""Types of modules whose attributes are no functions of other state."""

HEAP_TYPE = 1 << 9
KNOWN_METACLASSES = (type, ABCMeta, enum.EnumMeta, type(typing.Protocol))


@functools.lru_cache(4096)
def trusted_class(cls: type) -> bool:
    """Whether a class is one of a trusted package, not only named so.

    One written in Python is found in its module: what code there made of a user's
    class, or what was renamed, is not.
    """
    module = cls.__module__
    if not trusted(module) or not cls.__flags__ & HEAP_TYPE:
        return trusted(module)
    found: Any = sys.modules.get(module)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def is_trusted_module(value: ModuleType) -> bool:
    """Whether a module is one of a trusted package, not only called so."""
    return trusted(value.__name__) and sys.modules.get(value.__name__, value) is value


def is_protocol(cls: type) -> bool:
    """Whether objects of a class are told by what they have."""
    return "_is_protocol" in vars(cls) and vars(cls)["_is_protocol"]


def scopes_of(value: Any) -> Sequence[type]:
    """The classes in which an attribute of a value is looked up."""
    cls = type(value)
    if not isinstance(value, type):
        return (cls,)
    return (value,) if cls in KNOWN_METACLASSES else (value, cls)


def own_attributes(value: Any) -> dict[str, Any]:
    """An object's attributes, without running code of its class."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def static_lookup(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def has_getattr(value: Any) -> bool:
    """Whether code decides what attributes a value has."""
    if isinstance(value, ModuleType):
        return "__getattr__" in vars(value)
    cls = type(value)
    found = static_lookup(cls, "__getattr__")
    if found is not MISSING and found is not torch.nn.Module.__getattr__:
        return True
    return isinstance(static_lookup(cls, "__getattribute__"), FunctionType)


def is_trusted(fn: Any) -> bool:
    """Whether a function's globals are a trusted package's, not only named so."""
    if not isinstance(fn, FunctionType):
        return False
    name = fn.__globals__.get("__name__")
    if not isinstance(name, str) or not trusted(name):
        return False
    return getattr(sys.modules.get(name), "__dict__", None) is fn.__globals__


def uses_self(fn: Any) -> bool:
    """Whether a method does more with its object than reading attributes."""
    return not isinstance(fn, FunctionType) or code_facts(fn.__code__).uses_self


def leaks_self(found: Any) -> bool:
    """Whether a class's attribute, read or called, does more with its object."""
    match found:
        case FunctionType():
            return not is_trusted(found) and uses_self(found)
        case property():
            return is_trusted(found.fget) or uses_self(found.fget)
        case functools.cached_property():
            return uses_self(found.func)
        case staticmethod() | classmethod():
            return False
        case _:
            is_c = type(found) in C_DESCRIPTORS
            return hasattr(type(found), "__get__") and not is_c


def implicit_methods(value: Any) -> frozenset[str]:
    """Methods that are called without being named: operators, `__call__`.

    Those of a class are those that making an object of it calls.
    """
    if isinstance(value, ModuleType):
        return frozenset()
    return (
        _methods_of_class(value)
        if isinstance(value, type)
        else _methods_of(type(value))
    )


def _methods_of_class(cls: type) -> frozenset[str]:
    own = _special_methods(cls) & MAKING_METHODS
    meta = type(cls)
    return own if meta in KNOWN_METACLASSES else own | _special_methods(meta)


def _methods_of(cls: type) -> frozenset[str]:
    is_module = issubclass(cls, torch.nn.Module)
    return (_special_methods(cls) - SILENT_METHODS) | (
        {"forward"} if is_module else set()
    )


def _special_methods(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for base in cls.__mro__
        if not trusted_class(base)
        for name, value in vars(base).items()
        if name[:2] == "__" and isinstance(value, FunctionType | staticmethod)
    )


def is_plain(cls: type) -> bool:
    """A class of Python code, all of which the walk can read."""
    if not cls.__flags__ & HEAP_TYPE or cls.__flags__ & _NEVER_MADE:
        return False
    reads = static_lookup(cls, "__getattribute__")
    return not (
        isinstance(reads, FunctionType) or has_unread_code(cls) or _is_made_in_c(cls)
    )


def _is_made_in_c(cls: type) -> bool:
    """Whether objects of a class hold what only code in C can read."""
    makers = (vars(base).get("__new__") for base in cls.__mro__ if base is not object)
    return any(m is not None and not isinstance(m, staticmethod) for m in makers)


@functools.lru_cache(4096)
def has_unread_code(cls: type) -> bool:
    """Whether some of a class's code is not read: what it reads is not known."""
    bases = (base for base in cls.__mro__ if base not in _KNOWN_BASES)
    return any(map(trusted_class, bases))


_NEVER_MADE = 1 << 7
"""The flag of a type in C that makes no objects of itself."""

_KNOWN_BASES = (object, torch.nn.Module, typing.Generic, typing.Protocol, ABC)
