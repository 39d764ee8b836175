"""What mods are made of: a key, the values they capture, and a way to swap them.

A mod is walked at every call, so the walk is the fast path of the frontend: it
reads closure cells, defaults, the globals that the bytecode names, partials,
bound methods and objects, and yields

- a *key*, equal for two closures of equal bodies over different values;
- the *captures*, in a stable order: tensors, Python ints and floats, which
  become kernel arguments;
- whether the key is sound. Where it is not (`getattr`, an unknown C object), the
  mod is traced at every call: slow, but never stale. `call_watch` checks this
  while a mod is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from flexc.errors import StateError
from flexc.frontend.code_facts import code_facts, trusted
from flexc.frontend.plain_values import (
    BY_VALUE,
    INT64_MAX,
    INT64_MIN,
    MAX_NUMBERS,
    exact,
)
from flexc.frontend.rebuild import Freeze, Rebuild
from flexc.frontend.special_methods import (
    DYNAMIC_CALLABLES,
    MISSING,
    is_trusted,
    is_trusted_module,
)
from flexc.frontend.walk import Capture, Mod, Walk

# A shorter walk, over functions that read tensors, numbers and torch's functions.
#
# Most mods are such functions, and mods are walked at every call. What is found of them
# is what `Walk` finds.


NO_MOD = exact(None)

CONSTANTS = frozenset({*BY_VALUE, int, float})
"""Types of members of modules that are keyed by their values."""

Found = tuple[tuple[Any, ...], tuple[Capture, ...]]
"""A key and the captures."""


def read_plain(mods: Sequence[Mod | None]) -> Found | None:
    """The key and captures of mods, None if they are no plain functions."""
    # Quotients of positions are of the default dtype.
    key: list[Any] = [torch.get_default_dtype()]
    captures: list[Capture] = []
    slots: dict[int, int] = {}
    seen: dict[int, int] = {}
    modules: list[ModuleType] = []
    for mod in mods:
        if mod is None:
            key.append(NO_MOD)
            continue
        if type(mod) is not FunctionType or id(mod) in seen:
            return None
        if mod.__defaults__ or mod.__kwdefaults__ or mod.__dict__ or is_trusted(mod):
            return None
        code = mod.__code__
        facts = code_facts(code)
        if not facts.is_plain:
            return None
        key.append(code)
        seen[id(mod)] = len(seen)
        for value in _values_of(mod, facts.globals):
            kind = type(value)
            if kind is torch.Tensor:
                if not _add_tensor(value, key, captures, slots):
                    return None
            elif kind is int or kind is float:
                bounded = INT64_MIN <= value <= INT64_MAX
                if not bounded or len(captures) >= MAX_NUMBERS:
                    return None
                key.append(kind)
                captures.append(value)
            elif kind is not ModuleType:
                return None
            elif id(value) in seen:
                key.append(seen[id(value)])
            elif is_trusted_module(value):
                key.append(value)
                seen[id(value)] = len(seen)
                modules.append(value)
            else:
                return None
    if modules and not _add_members(modules, mods, key):
        return None
    return tuple(key), tuple(captures)


def _values_of(fn: FunctionType, names: Sequence[str]) -> list[Any]:
    """What a function's cells and globals hold; `MISSING` for what is not there."""
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
    value: torch.Tensor,
    key: list[Any],
    captures: list[Capture],
    slots: dict[int, int],
) -> bool:
    """Note a tensor, unless there is more to it."""
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


def _add_members(
    modules: Sequence[ModuleType], mods: Sequence[Any], key: list[Any]
) -> bool:
    """Add what code may read of trusted modules, if that is constant."""
    attributes: set[str] = set()
    for mod in mods:
        if mod is not None:
            attributes |= code_facts(mod.__code__).attributes
    for module in modules:
        held = vars(module)
        for name in sorted(attributes & held.keys()):
            member = held[name]
            key.append(name)
            if type(member) in CONSTANTS:
                key.append(exact(member))
            elif _is_constant(member):
                key.append(member)
            else:
                return False
    return True


def _is_constant(member: Any) -> bool:
    """Whether a member of a trusted module is a function that stands for itself."""
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
    """What the walk over one or more mods found.

    Not frozen, as one is made at each call, and that would take three times as long.
    """

    mods: tuple[Mod | None, ...]
    key: tuple[Any, ...]
    captures: tuple[Capture, ...]
    cacheable: bool
    """The key tells apart whatever must be traced apart."""
    static_numbers: bool
    """Numbers must stay Python numbers in the trace: the mod looks at types."""

    @property
    def can_grow(self) -> bool:
        """Whether tensors that tracing finds may become captures."""
        return True

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], set[CodeType]]:
        """Copy the mods with `values` in place of their captures.

        Also return the code of all functions that were read: none of mods that cannot
        be copied, which are returned themselves.
        """
        rebuild = Rebuild(values)
        try:
            mods = rebuild.run(self.mods)
        except Exception:  # Of objects that let nothing be written, say.
            return self.mods, set()
        same = self.key[1:] == tuple(rebuild.key)
        return (mods, rebuild.codes) if same else (self.mods, set())

    def capture_names(self) -> tuple[str, ...]:
        """The user's name for each capture: of a variable or an attribute."""
        rebuild = Rebuild(self.captures)
        with suppress(Exception):  # As above.
            rebuild.run(self.mods)
        unnamed = len(self.captures) - len(rebuild.names)
        return (*rebuild.names, *("captured" for _ in range(unnamed)))


def read_mods(*mods: Mod | None) -> ModSignature:
    """Walk mods together: a tensor that two of them capture is one capture.

    Mods that reach too much to be read, or that may find that what they reach is a
    copy, have no captures until they are traced.
    """
    if (found := read_plain(mods)) is not None:
        return ModSignature(mods, *found, True, False)
    return _walked(mods)


def freeze(*mods: Mod | None) -> tuple[Mod | None, ...] | None:
    """Return copies of mods that may outlive a call, None where that cannot be had.

    Their key is the same, whatever happens to what the mods reach, and they hold none
    of the tensors that the mods capture.
    """
    signature = read_mods(*mods)
    values = [_stand_in(c) if isinstance(c, Tensor) else c for c in signature.captures]
    try:
        copies = Freeze(values).run(mods)
        key, _ = read_key(*copies)
    except Exception:  # Of objects that let nothing be written, say.
        return None
    return copies if signature.cacheable and key == signature.key else None


def _stand_in(tensor: Tensor) -> Tensor:
    """Return a tensor of one element that a key does not tell from this one."""
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


def read_key(*mods: Mod | None) -> tuple[tuple[Any, ...] | None, tuple[Capture, ...]]:
    """The key and captures of mods; no key where they are traced at every call."""
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
    # Quotients of positions are of the default dtype.
    key = (torch.get_default_dtype(), *walk.key)
    return ModSignature(
        mods, key, tuple(walk.captures), walk.sound, walk.static_numbers
    )
