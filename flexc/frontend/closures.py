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
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from flexc.errors import StateError
from flexc.frontend.plain_mods import read_plain
from flexc.frontend.rebuild import Freeze, Rebuild
from flexc.frontend.walk import Capture, Mod, Walk


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
