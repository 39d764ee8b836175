"""Facts of Python code, classes and values: names read, special methods, constants.

A fact is computed once per code object or class. The walk over a mod, which runs at
every call, looks facts up. No user code runs.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import operator
import sys
import typing
from abc import ABC, ABCMeta
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import (
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch


def names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


DYNAMIC_NAMES = names_in(
    """
    delattr eval exec getattr globals input locals open setattr vars __import__
    attrgetter hasattr methodcaller super
    """
)
"""Functions that read or write values that the bytecode does not name."""

DYNAMIC_ATTRIBUTES = names_in(
    """
    __annotations__ __base__ __bases__ __builtins__ __class__ __closure__ __code__
    __defaults__ __dict__ __doc__ __func__ __getattribute__ __globals__ __kwdefaults__
    __members__ __module__ __mro__ __name__ __qualname__ __self__ __slots__
    __subclasses__ __weakref__ __wrapped__ attrgetter f_globals f_locals format
    format_map gi_frame methodcaller mro
    """
)
"""Attributes of functions, classes and frames that give access to unnamed values."""

INSPECTING_NAMES = names_in("isinstance issubclass type")
"""Builtins that distinguish a symbolic number from a Python number."""

TRUSTED_PACKAGES = names_in(
    "builtins cmath enum functools itertools math operator torch typing"
)
"""Packages whose contents do not change while a program runs."""

_READS_GLOBAL = names_in("LOAD_GLOBAL LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS")
_READS_ATTRIBUTE = names_in("LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR")
_READS_NO_VALUE = _READS_ATTRIBUTE | {"LOAD_CLOSURE", "LOAD_CONST"}
_READS_UNNAMED = names_in("IMPORT_STAR MATCH_CLASS")
_WRITES_STATE = names_in("STORE_GLOBAL DELETE_GLOBAL STORE_NAME STORE_ATTR DELETE_ATTR")
_WRITES_CELL = names_in("STORE_DEREF DELETE_DEREF")


@dataclass(frozen=True)
class CodeFacts:
    """The reads of one code object, including nested code."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    used: frozenset[str]
    """Variables that are used for more than reading their attributes."""
    used_attributes: frozenset[str]
    """Attributes whose values are used for more than reading attributes."""
    sound: bool
    """True if the code reads and writes only values that the fields above name."""
    inspects_types: bool
    """True if a symbolic number may take another branch than a Python number."""
    asks_instances_only: bool
    """True if only `isinstance` inspects types."""
    compares_identity: bool
    """True if objects are compared by identity."""
    uses_self: bool
    """True for a method that uses its object for more than reading attributes, and for
    code that is no method.
    """

    @cached_property
    def is_plain(self) -> bool:
        """True if the code depends only on the names that it reads."""
        return self.sound and not (self.inspects_types or self.compares_identity)


MAX_CODES = 16_384
"""The number of code objects whose facts are cached."""


@lru_cache(4096)
def trusted(module_name: object) -> bool:
    """Return True if the contents of a module may be treated as constant.

    Some classes in C have a descriptor as their `__module__`.
    """
    if not isinstance(module_name, str):
        return True
    return module_name.partition(".")[0].lstrip("_") in TRUSTED_PACKAGES


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all nested code objects."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


@lru_cache(MAX_CODES)
def code_facts(code: CodeType) -> CodeFacts:
    """Return the facts of a code object."""
    names: dict[str, None] = {}
    attributes: set[str] = set()
    used: set[str] = set()
    used_attributes: set[str] = set()
    sound, matches, identity = True, False, False
    for ins, then in (pair for c in nested(code) for pair in _steps(c)):
        only_read = then in _READS_ATTRIBUTE
        if ins.opname in _READS_GLOBAL:
            names[ins.argval] = None
        if ins.opname in _READS_ATTRIBUTE:
            attributes.add(ins.argval)
            used_attributes |= set() if only_read else {ins.argval}
        matches |= ins.opname == "MATCH_CLASS"
        if then in ("CONTAINS_OP", "IS_OP"):
            # Constants and classes are never copied.
            identity |= ins.opname != "LOAD_CONST" and ins.argval != "__class__"
        if ins.opname == "IMPORT_NAME":
            sound &= trusted(ins.argval)
        elif ins.opname in _WRITES_STATE or ins.opname in _READS_UNNAMED:
            sound = False
        elif ins.opname in _WRITES_CELL:
            sound &= ins.argval not in code.co_freevars
        elif "LOAD_" in ins.opname and ins.opname not in _READS_NO_VALUE:
            used.update(_variables(ins)[: -1 if only_read else None])
    dynamic = DYNAMIC_NAMES & names.keys() or DYNAMIC_ATTRIBUTES & attributes
    return CodeFacts(
        tuple(names),
        frozenset(attributes),
        frozenset(used),
        frozenset(used_attributes),
        sound and not dynamic,
        bool(INSPECTING_NAMES & names.keys()) or matches,
        INSPECTING_NAMES & names.keys() == {"isinstance"} and not matches,
        identity,
        code.co_argcount == 0 or code.co_varnames[0] in used,
    )


def _steps(code: CodeType) -> Iterator[tuple[dis.Instruction, str]]:
    """Return pairs of each instruction and the name of the next one's operation."""
    steps = list(dis.get_instructions(code))
    return zip(steps, [*(step.opname for step in steps[1:]), ""], strict=True)


def _variables(ins: dis.Instruction) -> tuple[str, ...]:
    """Return the names that an instruction loads. Some instructions load two."""
    value = ins.argval
    names = value if isinstance(value, tuple) else (value,)
    return tuple(n for n in names if isinstance(n, str))


SILENT_METHODS = names_in(
    """
    __class_getitem__ __delattr__ __init__ __init_subclass__ __new__ __post_init__
    __reduce__ __repr__ __setattr__ __str__
    """
)
"""Special methods that computing with an object does not call."""

READING_METHODS = names_in("__getattr__ __getattribute__")
MAKING_METHODS = names_in("__init__ __new__ __post_init__")
"""Special methods that are called by reading an attribute, and by making an object."""

MODULE_CALLS = names_in("__call__ _call_impl _wrapped_call_impl")
MODULE_LISTS = names_in(
    """
    buffers children get_buffer get_extra_state get_parameter get_submodule modules
    named_buffers named_children named_modules named_parameters parameters state_dict
    """
)
"""Methods of torch.nn.Module that call the module, and methods that give access to
members without naming them.
"""

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Dictionaries of a torch.nn.Module that its `__getattr__` searches."""

MEMBERS_OWN = names_in("_name_ __objclass__ _sort_order_")
"""Attributes that the enum package gives to each member."""

MISSING = object()
C_DESCRIPTORS = (
    MethodDescriptorType,
    WrapperDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ClassMethodDescriptorType,
    type(vars(namedtuple("_", "field"))["field"]),
)

DYNAMIC_CALLABLES = frozenset(
    getattr(scope, name)
    for scope in (builtins, operator)
    for name in DYNAMIC_NAMES
    if hasattr(scope, name)
)
"""Builtins and operators, which code may call by another name."""

KNOWN_MODULES = (ModuleType, type(torch.ops), type(torch.ops.aten))
"""Types of modules whose attributes do not depend on other state."""

HEAP_TYPE = 1 << 9
KNOWN_METACLASSES = (type, ABCMeta, enum.EnumMeta, type(typing.Protocol))


@lru_cache(4096)
def trusted_class(cls: type) -> bool:
    """Return True if a class belongs to a trusted package, not only by its name.

    A class in Python must be found in its module. A class that was renamed, or that the
    module made from a user's class, is not found there.
    """
    module = cls.__module__
    if not trusted(module) or not cls.__flags__ & HEAP_TYPE:
        return trusted(module)
    found: Any = sys.modules.get(module)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def is_trusted_module(value: ModuleType) -> bool:
    """Return True if a module belongs to a trusted package, not only by its name."""
    return trusted(value.__name__) and sys.modules.get(value.__name__, value) is value


def is_protocol(cls: type) -> bool:
    """Return True if a class is a protocol, which objects match by their attributes."""
    return bool(vars(cls).get("_is_protocol"))


def contents_of(cells: Sequence[CellType]) -> list[Any]:
    """Return the values of captured variables, MISSING for those without one yet."""
    try:
        return [cell.cell_contents for cell in cells]
    except ValueError:
        if len(cells) == 1:
            return [MISSING]
        return [value for cell in cells for value in contents_of((cell,))]


def scopes_of(value: Any) -> Sequence[type]:
    """Return the classes in which an attribute of a value is looked up."""
    cls = type(value)
    if not isinstance(value, type):
        return (cls,)
    return (value,) if cls in KNOWN_METACLASSES else (value, cls)


def own_attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, without running code of its class."""
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
    """Return True if code determines which attributes a value has."""
    if isinstance(value, ModuleType):
        return "__getattr__" in vars(value)
    cls = type(value)
    found = static_lookup(cls, "__getattr__")
    if found is not MISSING and found is not torch.nn.Module.__getattr__:
        return True
    return isinstance(static_lookup(cls, "__getattribute__"), FunctionType)


def is_trusted(fn: Any) -> bool:
    """Return True if a function's globals are those of a trusted package's module."""
    if not isinstance(fn, FunctionType):
        return False
    name = fn.__globals__.get("__name__")
    if type(name) is not str or not trusted(name):
        return False
    return getattr(sys.modules.get(name), "__dict__", None) is fn.__globals__


def uses_self(fn: Any) -> bool:
    """Return True if a method uses its object for more than reading attributes."""
    return not isinstance(fn, FunctionType) or code_facts(fn.__code__).uses_self


def leaks_self(found: Any) -> bool:
    """Return True if reading or calling a class attribute may leak its object."""
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
    """Return the methods that are called without being named, such as operators.

    For a class, these are the methods that making an instance calls.
    """
    if isinstance(value, ModuleType):
        return frozenset()
    cls = type(value)
    if isinstance(value, type):
        own = _special_methods(value) & MAKING_METHODS
        return own if cls in KNOWN_METACLASSES else own | _special_methods(cls)
    named = {"forward"} if issubclass(cls, torch.nn.Module) else set()
    return (_special_methods(cls) - SILENT_METHODS) | named


def _special_methods(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for base in cls.__mro__
        if not trusted_class(base)
        for name, value in vars(base).items()
        if name[:2] == "__" and isinstance(value, FunctionType | staticmethod)
    )


def is_plain(cls: type) -> bool:
    """Return True for a class in Python whose code the walk can read completely."""
    if not cls.__flags__ & HEAP_TYPE or cls.__flags__ & _NEVER_MADE:
        return False
    reads = static_lookup(cls, "__getattribute__")
    if isinstance(reads, FunctionType) or has_unread_code(cls):
        return False
    # Objects made in C may hold state that only C code can read.
    makers = (vars(base).get("__new__") for base in cls.__mro__ if base is not object)
    return all(m is None or isinstance(m, staticmethod) for m in makers)


@lru_cache(4096)
def has_unread_code(cls: type) -> bool:
    """Return True if some code of a class is not read, so its reads are unknown."""
    bases = (base for base in cls.__mro__ if base not in _KNOWN_BASES)
    return any(map(trusted_class, bases))


PACKED_MASKS: dict[CodeType, tuple[str, ...]] = {}
"""The code of masks that keep pairs of one packed sequence only.

Its variables of four names hold tensors that place the sequences (see `sequences` of
`flex.attention`).
"""

_NEVER_MADE = 1 << 7
"""The flag of a type in C that cannot be instantiated."""

_KNOWN_BASES = (object, torch.nn.Module, typing.Generic, typing.Protocol, ABC)


BY_VALUE: tuple[type, ...] = (
    bool,
    bytes,
    complex,
    range,
    str,
    type(None),
    type(...),
    torch.device,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
"""Types of immutable values."""

KEY_TYPES = frozenset(
    {bool, bytes, float, int, str, type(None), torch.dtype, torch.device}
)
"""Types of keys of dictionaries and elements of sets."""

BUDGET = 1_000_000
"""The largest cost of one walk, in attributes that are looked up."""
VALUE, OBJECT = 10, 200
"""The costs of a value in a container, and of an object or function."""

MAX_NUMBERS = 1_000
"""The number of Python numbers that one walk may capture. Further numbers are keyed by
value, because each captured number makes tracing slower.
"""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def exact(value: Any) -> Any:
    """Return a key that distinguishes -0.0 from 0.0, and is equal for two NaNs."""
    match value:
        case float():
            return type(value), value.hex()
        case complex():
            return complex, value.real.hex(), value.imag.hex()
        case _:
            return type(value), value


def number_key(value: float | None) -> Any:
    """Return a key of a number of known type that distinguishes -0.0 from 0.0."""
    return value or repr(value)
