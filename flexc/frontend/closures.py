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
from types import CodeType, FunctionType
from typing import Any

import torch

from flexc.errors import StateError
from flexc.frontend.code_facts import code_facts
from flexc.frontend.plain_values import exact
from flexc.frontend.rebuild import Rebuild
from flexc.frontend.special_methods import is_trusted
from flexc.frontend.walk import Capture, Mod, Walk


@dataclass(frozen=True, slots=True)
class ModSignature:
    """What the walk over one or more mods found."""

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


NO_MOD = exact(None)


def _read_plain(
    mods: Sequence[Mod | None],
) -> tuple[list[Any], tuple[Capture, ...]] | None:
    """What a walk finds of functions that read nothing but tensors in their closures.

    None for all others. Most mods are such functions, and a walk takes longer.
    """
    key: list[Any] = []
    slots: dict[int, int] = {}
    captures: list[Capture] = []
    for mod in mods:
        if mod is None:
            key.append(NO_MOD)
            continue
        if type(mod) is not FunctionType or not _reads_cells_only(mod):
            return None
        key.append(mod.__code__)
        for cell in mod.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # A variable that has no value yet.
                return None
            if type(value) is not torch.Tensor or value.__dict__:
                return None
            if value.layout is not torch.strided or value.is_nested:
                return None
            slot = slots.get(id(value))
            is_new = slot is None
            if is_new:
                slot = slots[id(value)] = len(captures)
                captures.append(value)
            rank = value.dim()
            unit = rank == 0 or value.stride(-1) == 1
            key.append((slot, value.dtype, rank, value.device.type, unit))
            if is_new:
                key.append((False, False))
    return key, tuple(captures)


def _reads_cells_only(fn: FunctionType) -> bool:
    """Whether a function has no defaults or attributes, and reads no globals."""
    if fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__:
        return False
    facts = code_facts(fn.__code__)
    special = facts.globals or facts.inspects_types or facts.compares_identity
    return facts.sound and not special and not is_trusted(fn)


def read_mods(*mods: Mod | None) -> ModSignature:
    """Walk mods together: a tensor that two of them capture is one capture.

    Mods that reach too much to be read, or that may find that what they reach is a
    copy, have no captures until they are traced.
    """
    if (found := _read_plain(mods)) is not None:
        key, captures = found
        key = (torch.get_default_dtype(), *key)
        return ModSignature(mods, key, captures, True, False)
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
