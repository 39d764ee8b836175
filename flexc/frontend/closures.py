"""Reading of the code and state of mods: a key, captured values, and copies of mods.

A mod is read at every call, so this must be fast. Reading covers closure cells,
defaults, the globals that the bytecode names, partials, bound methods and objects. It
gives:

- a *key*, equal for two closures of equal bodies over different values,
- the *captures*, in a stable order: tensors, Python ints and floats, which become
  arguments of the kernel,
- `cacheable`: True if the key is sound. A mod without a sound key (`getattr`, an
  unknown C object) is traced at every call. `call_watch` checks soundness during a
  trace.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from flexc.errors import StateError
from flexc.frontend.code_facts import (
    BY_VALUE,
    DYNAMIC_CALLABLES,
    HEAP_TYPE,
    INT64_MAX,
    INT64_MIN,
    MAX_NUMBERS,
    MISSING,
    CodeFacts,
    code_facts,
    exact,
    is_protocol,
    is_trusted,
    is_trusted_module,
    own_attributes,
    trusted,
    trusted_class,
)
from flexc.frontend.walk import Capture, Mod, Walk, class_key


class Rebuild(Walk):
    """A walk in the same order as `Walk` that copies the values it visits."""

    def __init__(self, values: Sequence[Any]):
        super().__init__()
        self._values = values
        self.names: list[str] = []
        self.codes: set[CodeType] = set()
        """The code of all functions that were visited."""

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
        names = copy.__code__.co_freevars
        for name, cell in zip(names, copy.__closure__ or (), strict=True):
            if name in cells:
                cell.cell_contents = cells[name]
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
    """A walk that copies mods to outlive a call, with only the globals they name."""

    def begin(self, value: Any) -> Any:
        if not isinstance(value, FunctionType):
            return super().begin(value)
        held, names = value.__globals__, _names_in(value.__code__)
        return _copy_function(value, {n: held[n] for n in names if n in held})


def _names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code, and in nested code."""
    within = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names, "__builtins__"}.union(*map(_names_in, within))


def _copy_function(
    fn: FunctionType, held: dict[str, Any] | None = None
) -> FunctionType:
    """Return a copy of a function with empty cells, and its own or given globals."""
    cells = tuple(CellType() for _ in fn.__closure__ or ())
    held = dict(fn.__globals__) if held is None else held
    copy = FunctionType(fn.__code__, held, fn.__name__, None, cells or None)
    copy.__qualname__, copy.__module__ = fn.__qualname__, fn.__module__
    copy.__doc__, copy.__annotations__ = fn.__doc__, fn.__annotations__
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


CONSTANTS = frozenset({*BY_VALUE, int, float})
"""Types of values that are keyed by value. Of ints and floats, only members of modules
are; others are captures.
"""

Found = tuple[tuple[Any, ...], tuple[Capture, ...]]
"""A key and the captures."""


MOST_PARTS = 64
"""The number of parts of tuples that `read_plain` reads."""

NO_MOD = exact(None)


def read_plain(mods: Sequence[Mod | None]) -> Found | None:
    """Return the key and captures of mods, None if they are not plain functions.

    This is a short path for functions that read only tensors, numbers, torch's
    functions and other such functions, as most mods do. The result equals that of
    `Walk`.
    """
    # Quotients of positions have the default dtype.
    key: list[Any] = [torch.get_default_dtype()]
    captures: list[Capture] = []
    slots: dict[int, int] = {}
    seen: dict[int, int] = {}
    modules: list[ModuleType] = []
    attributes: frozenset[str] = frozenset()
    tuples: set[int] = set()
    parts = 0
    pending: list[Any] = [*reversed(mods)]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is Tensor:
            if not _add_tensor(value, key, captures, slots):
                return None
        elif kind is int or kind is float:
            bounded = INT64_MIN <= value <= INT64_MAX
            if not bounded or len(captures) >= MAX_NUMBERS:
                return None
            key.append(kind)
            captures.append(value)
        elif kind in CONSTANTS:
            key.append(exact(value))
        elif kind is tuple:
            # A tuple met again may contain itself, or double the parts at each level.
            parts += len(value)
            if parts > MOST_PARTS or id(value) in tuples:
                return None
            if value:
                tuples.add(id(value))
            key.append((tuple, len(value)))
            pending += reversed(value)
        elif kind is not FunctionType and kind is not ModuleType:
            return None
        elif (place := seen.get(id(value))) is not None:
            key.append(place)
        elif kind is ModuleType:
            key.append(value)
            seen[id(value)] = len(seen)
            modules.append(value)
        else:
            if (facts := _plain_facts(value)) is None:
                return None
            key.append(value.__code__)
            seen[id(value)] = len(seen)
            attributes |= facts.attributes
            pending += reversed(_values_of(value, facts.globals))
    for module in modules:
        if (members := _members_of(module, attributes)) is None:
            return None
        key += members
    return tuple(key), tuple(captures)


def _plain_facts(fn: FunctionType) -> CodeFacts | None:
    """Return the facts of a function's code, None if the function needs the walk."""
    if fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__ or is_trusted(fn):
        return None
    facts = code_facts(fn.__code__)
    return facts if facts.is_plain else None


def _values_of(fn: FunctionType, names: Sequence[str]) -> list[Any]:
    """Return a function's cell and global values, with MISSING last if one lacks."""
    values: list[Any] = []
    try:
        for cell in fn.__closure__ or ():
            values.append(cell.cell_contents)
        for name in names:
            values.append(fn.__globals__[name])
    except (ValueError, KeyError):  # A variable without a value, or a builtin.
        values.append(MISSING)
    return values


def _add_tensor(
    value: torch.Tensor, key: list[Any], captures: list[Capture], slots: dict[int, int]
) -> bool:
    """Add a tensor to key and captures. Return False if it needs the full walk."""
    if value.layout is not torch.strided or value.is_nested or value.__dict__:
        return False
    slot = slots.get(id(value))
    is_new = slot is None
    if is_new:
        slot = slots[id(value)] = len(captures)
        captures.append(value)
    strides = value.stride()
    unit = not strides or strides[-1] == 1
    kind = "cpu" if value.is_cpu else value.device.type
    key.append((slot, value.dtype, len(strides), kind, unit))
    if is_new:
        key.append((False, False))  # Neither a parameter nor a buffer.
    return True


MOST_MODULES = 1024
"""The number of modules, with names of members, whose members are remembered."""

_seen_members: dict[Any, tuple[list[tuple[str, Any]], list[Any]]] = {}
"""By a trusted module and names: the members of these names, and their part of a key.

Reading a module's members takes most of the time of reading a mod.
"""


def _members_of(module: ModuleType, names: frozenset[str]) -> list[Any] | None:
    """Return the part of a key for those members of a module that code reads.

    Return None if the module is not trusted, or a member is not constant. The part is
    remembered while the module has the same members.
    """
    held = module.__dict__
    seen = _seen_members.get((module, names))
    if seen is not None:
        for name, member in seen[0]:
            if held.get(name, MISSING) is not member:
                break
        else:
            return seen[1]
    members = [(name, held.get(name, MISSING)) for name in sorted(names)]
    part: list[Any] = []
    for name, member in members:
        if type(member) in CONSTANTS:
            part += name, exact(member)
        elif type(member) is type and trusted_class(member):
            part += name, class_key(member)
            if member in DYNAMIC_CALLABLES or is_protocol(member):
                return None
        elif member is not MISSING:
            part += name, member
            if not _is_constant(member):
                return None
    if not is_trusted_module(module):
        return None
    if len(_seen_members) >= MOST_MODULES:
        _seen_members.clear()
    _seen_members[module, names] = members, part
    return part


def _is_constant(member: Any) -> bool:
    """Return True if a member of a trusted module is a function keyed by identity."""
    if type(member) is FunctionType:
        return member.__closure__ is None and is_trusted(member)
    if type(member) is not BuiltinFunctionType or member in DYNAMIC_CALLABLES:
        return False
    owner = member.__self__
    if isinstance(owner, ModuleType):
        return trusted(owner.__name__)
    return owner is None or isinstance(owner, type)


@dataclass(slots=True, eq=False)
class ModSignature:
    """The result of a walk over one or more mods.

    The class is not frozen, because each call makes an instance and freezing is slow.
    """

    mods: tuple[Mod | None, ...]
    key: tuple[Any, ...]
    captures: tuple[Capture, ...]
    cacheable: bool
    """True if mods with equal keys may share a trace."""
    static_numbers: bool
    """True if numbers must stay Python numbers, because the mod inspects types."""

    @property
    def can_grow(self) -> bool:
        """True if tensors that tracing finds may become captures."""
        return True

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], set[CodeType]]:
        """Return copies of the mods with `values` in place of their captures.

        Also return the code of all functions that were read. If the mods cannot be
        copied, return the mods themselves, and no code.
        """
        rebuild = Rebuild(values)
        try:
            mods = rebuild.run(self.mods)
        except Exception:  # Some objects cannot be written to.
            return self.mods, set()
        same = self.key[1:] == tuple(rebuild.key)
        return (mods, rebuild.codes) if same else (self.mods, set())

    def capture_names(self) -> tuple[str, ...]:
        """Return the user's name, of a variable or an attribute, for each capture."""
        rebuild = Rebuild(self.captures)
        with suppress(Exception):  # As above.
            rebuild.run(self.mods)
        unnamed = len(self.captures) - len(rebuild.names)
        return (*rebuild.names, *("captured" for _ in range(unnamed)))


def read_mods(*mods: Mod | None) -> ModSignature:
    """Walk mods together. A tensor that two mods capture is one capture.

    Mods that reach too many objects, or that might detect that an object is a copy,
    have no captures until they are traced.
    """
    if (found := read_plain(mods)) is not None:
        return ModSignature(mods, *found, True, False)
    return _walked(mods)


def freeze(
    score_mod: Mod | None, mask_mod: Mod | None
) -> tuple[Mod | None, ...] | None:
    """Return copies of mods that may outlive a call, None if they cannot be copied.

    The copies keep their key regardless of later changes to the user's objects. They
    hold none of the captured tensors.
    """
    mods = score_mod, mask_mod
    signature = read_mods(*mods)
    values = [_stand_in(c) if isinstance(c, Tensor) else c for c in signature.captures]
    try:
        copies = Freeze(values).run(mods)
        key, _ = read_key(*copies)
    except Exception:  # Some objects cannot be written to.
        return None
    return copies if signature.cacheable and key == signature.key else None


def _stand_in(tensor: Tensor) -> Tensor:
    """Return a tensor of one element with the same key as the given one."""
    rank = tensor.dim()
    strides = [1] * rank if rank and tensor.stride(-1) == 1 else [2] * rank
    found = torch.empty_strided(
        [1] * rank, strides, dtype=tensor.dtype, device=tensor.device
    )
    return (
        Parameter(found, tensor.requires_grad)
        if isinstance(tensor, Parameter)
        else found
    )


def read_key(
    score_mod: Mod | None, mask_mod: Mod | None
) -> tuple[tuple[Any, ...] | None, tuple[Capture, ...]]:
    """Return mods' key and captures. The key is None for mods traced at every call."""
    if score_mod is None and mask_mod is None:
        return (torch.get_default_dtype(), NO_MOD, NO_MOD), ()
    mods = score_mod, mask_mod
    if (found := read_plain(mods)) is not None:
        return found
    signature = _walked(mods)
    return signature.key if signature.cacheable else None, signature.captures


def _walked(mods: tuple[Mod | None, ...]) -> ModSignature:
    walk = Walk()
    try:
        walk.run(mods)
    except (StateError, RecursionError):
        return ModSignature(mods, (), (), False, False)
    if walk.compares_identity and (walk.met_twice or not walk.sound):
        return ModSignature(mods, (), (), False, False)
    # Quotients of positions have the default dtype.
    key = (torch.get_default_dtype(), *walk.key)
    return ModSignature(
        mods, key, tuple(walk.captures), walk.sound, walk.static_numbers
    )
