"""Values cached for all tensors of equal facts.

Facts are the values that a tape or a plan depends on: shapes, strides, dtypes,
alignment, equal addresses, flags for gradients, numbers by value, and settings of
torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from flexc.frontend.code_facts import number_key
from flexc.runtime.inputs.tensor_facts import ALIGNMENT
from flexc.runtime.inputs.wrappers import PLAIN, count_of_modes, current_transform
from flexc.runtime.tapes.gpus import CPU, stream_of

MOST = 1024
"""The number of keys and facts for which values are cached."""

MOST_GUARDS = 8
"""The number of guards of one key and shape that are tried before facts are listed."""

LISTINGS_PER_GUARD = 64
"""The number of calls that list the facts of a dropped guard before it is made again.
Making a guard takes longer than listing facts.
"""

count_of_function_modes = torch._C._len_torch_function_stack
is_autocast_enabled = torch.is_autocast_enabled
is_deterministic: Any = torch._C._get_deterministic_algorithms  # pyright: ignore
precision_of: Any = torch._C._get_fp32_precision_getter  # pyright: ignore
"""A function that returns the precision of fp32 products. Reading `torch.backends` is
slower.
"""

environment: Any = getattr(os.environ, "_data")  # noqa: B009  (private)
"""The dict behind `os.environ`, in which looking up a missing name is faster."""
MACHINE: Any = os.environ.encodekey("FLEXC_MACHINE")

NUMBERS = frozenset({int, float, bool})

FACTS = 6
"""The number of facts of a tensor, besides those about equal ones."""

Make = Callable[[Sequence[Any], Hashable, bool], Any]
"""A function that makes a value to be cached. It takes the first tensors of some facts,
the pair of the key and the facts, and `is_known`: True if calls of these facts will
likely repeat.
"""


class Found:
    """A cached value."""

    __slots__ = ("listings", "repeats", "value")

    def __init__(self, value: Any):
        self.value = value
        self.repeats = False
        """True if a later call had the same facts."""
        self.listings = 0
        """The number of calls that listed its facts, because no guard held."""


class FactsCache:
    """A cache of values by key and facts.

    The key holds everything that a value depends on, except the facts of tensors and
    numbers. A model has many calls of each length. So if the last facts of a key
    repeated, new facts of this key will likely repeat too.
    """

    __slots__ = ("_found", "_guards", "_last", "most")

    def __init__(self, most: int = MOST):
        self.most = most
        """The largest number of values. A full cache is cleared."""
        self._found: dict[Hashable, Found] = {}
        self._guards: dict[Hashable, dict[Hashable, list[tuple[Guard, Found]]]] = {}
        """Guards by key, and by the shape of the second tensor, the keys of a call. A
        model with a growing cache has many lengths.
        """
        self._last: dict[Hashable, Found] = {}
        """The last value that was made for each key."""

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        self._found.clear()
        self._guards.clear()
        self._last.clear()

    def find(
        self,
        key: Hashable,
        tensors: Sequence[Any],
        device: torch.device,
        make: Make | None = None,
    ) -> Any:
        """Return the cached value, made by `make` if there is none.

        Return None if the tensors have no facts, or a mode, transform or recorder is
        active.
        """
        if not is_hidden():
            return None
        key = (key, settings(device))
        guards = self._guards.get(key)
        if guards is not None:
            for guard, found in guards.get(second_shape(tensors), ()):
                if guard.holds(tensors):
                    found.repeats = True
                    return found.value
        facts = facts_of(tensors)
        if facts is None:
            return None
        exact = key, facts
        found = self._found.get(exact)
        if found is None:
            return None if make is None else self._make(exact, tensors, make)
        found.repeats = True
        self._listed(key, tensors, found)
        return found.value

    def _make(
        self, exact: tuple[Hashable, Hashable], tensors: Sequence[Any], make: Make
    ) -> Any:
        """Make and return the value of a key and facts."""
        if len(self._found) >= self.most:
            self.clear()
        key, _ = exact
        last = self._last.get(key)
        is_known = last is not None and last.repeats
        found = Found(make(tensors, exact, is_known))
        self._found[exact] = self._last[key] = found
        if is_known:
            self._listed(key, tensors, found)
        return found.value

    def _listed(self, key: Hashable, tensors: Sequence[Any], found: Found) -> None:
        """Count a listing of facts that will likely repeat, and guard them if due.

        The oldest of many guards of a shape is dropped, because comparing with many
        takes longer than listing facts.
        """
        found.listings += 1
        if found.listings % LISTINGS_PER_GUARD != 1:
            return
        guard = Guard.of(tensors)
        if guard is not None:
            by_shape, shape = self._guards.setdefault(key, {}), second_shape(tensors)
            guards = by_shape.get(shape, [])
            by_shape[shape] = [(guard, found), *guards[: MOST_GUARDS - 1]]


def second_shape(tensors: Sequence[Any]) -> Hashable:
    """Return the shape of the second tensor, None if there is none."""
    if len(tensors) < 2 or type(tensors[1]) not in PLAIN or tensors[1].is_nested:
        return None
    shape: torch.Size = tensors[1].shape
    return shape


class Guard:
    """A check that tensors have certain facts, faster than listing the facts.

    torch compares all facts but those about addresses.
    """

    __slots__ = ("_check", "_count", "_numbers", "_pick", "_places")

    def __init__(self, tensors: Sequence[Any], places: Sequence[int]):
        self._count = len(tensors)
        self._pick = itemgetter(*places) if len(places) < len(tensors) else None
        found = [tensors[i] for i in places]
        self._places = places_of([t.data_ptr() for t in found])
        """The result of `places_of` for the addresses, which are valid and aligned."""
        static: Any = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
        self._check = TensorGuards(*found, **static).check
        others = [i for i in range(len(tensors)) if i not in places]
        self._numbers = [(i, type(tensors[i]), number_key(tensors[i])) for i in others]

    @classmethod
    def of(cls, tensors: Sequence[Any]) -> Guard | None:
        """Return the guard of distinct, aligned tensors that are not empty, else None.

        All other values must be numbers or None, because `number_key` distinguishes
        only these.
        """
        places = [i for i, t in enumerate(tensors) if isinstance(t, Tensor)]
        others = [t for t in tensors if not isinstance(t, Tensor) and t is not None]
        if not NUMBERS.issuperset(map(type, others)):
            return None
        found = [tensors[i] for i in places]
        if not found or (len(found) == 1 and len(tensors) > 1):
            return None  # `itemgetter` returns no tuple for one place.
        addresses = [t.data_ptr() for t in found]
        if not all(addresses) or any(a % ALIGNMENT for a in addresses):
            return None
        if len(set(map(id, found))) < len(found):
            return None
        return cls(tensors, places)

    def holds(self, tensors: Sequence[Any]) -> bool:
        if len(tensors) != self._count:
            return False
        if self._pick is not None:
            for place, kind, fact in self._numbers:
                number = tensors[place]
                if type(number) is not kind or number_key(number) != fact:
                    return False
            tensors = self._pick(tensors)
        for tensor in tensors:
            if getattr(tensor, "is_nested", False):
                return False  # torch's check ends the process: these have no strides.
        if not self._check(*tensors):
            return False
        addresses: list[int] = []  # As in `of`, but without a call.
        for tensor in tensors:
            address = tensor.data_ptr()
            if not address or address % ALIGNMENT:
                return False
            addresses.append(address)
        if self._places is None:
            return len(set(addresses)) == len(addresses)
        return places_of(addresses) == self._places


def places_of(addresses: Sequence[int]) -> list[int] | None:
    """Return the place of the first equal address for each, None if all differ.

    Kernels make use of values that are a view of keys.
    """
    if len(set(addresses)) == len(addresses):
        return None
    return [addresses.index(a) for a in addresses]


def is_hidden() -> bool:
    """Return True if no mode, transform or recorder sees or changes operations."""
    return (
        current_transform() is None
        and forward_ad._current_level < 0
        and not count_of_modes()
        and (not count_of_function_modes() or _only_says_devices())
    )


def _only_says_devices() -> bool:
    """Return True if all function modes only set the device of new tensors."""
    modes = _get_current_function_mode_stack()
    return all(type(mode) is DeviceContext for mode in modes)


def facts_of(tensors: Sequence[Any]) -> tuple[Hashable, ...] | None:
    """Return the facts of tensors and numbers, None if a value has no facts."""
    facts: list[Any] = []
    addresses: list[int] = []
    try:  # A tensor without strides or memory raises an error.
        for tensor in tensors:
            if type(tensor) in PLAIN:
                address = tensor.data_ptr()
                if tensor.is_neg() or (not address and tensor.numel()):
                    return None
                aligned = address % ALIGNMENT == 0
                facts += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                facts += (tensor.requires_grad, aligned)
                addresses.append(address)
            elif tensor is None or type(tensor) in NUMBERS:
                facts.append(number_key(tensor))
            else:
                return None
    except RuntimeError:
        return None
    if len(set(map(id, tensors))) < len(tensors):
        # A tape identifies tensors by identity, so repeated tensors are a fact.
        first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        facts += [first[id(t)] for t in tensors]
    facts += places_of(addresses) or ()
    return tuple(facts)


def facts_without_sizes(
    tensors: Sequence[Any],
    facts: Sequence[Any],
    growing: Sequence[int],
    keys: Sequence[int],
) -> tuple[Hashable, ...]:
    """Return the facts that calls with other sizes of some tensors have too.

    `facts` are those of the tensors and numbers. The tensors in the places `growing`
    may have other sizes and strides: those in the places `keys`, of four dimensions,
    other numbers of rows and strides of batches and heads, the others any. Integers
    may be others too.
    """
    found: list[Any] = []
    rest = list(facts)
    for place, tensor in enumerate(tensors):
        count = 1 if tensor is None or type(tensor) in NUMBERS else FACTS
        own, rest = rest[:count], rest[count:]
        if place in growing:
            shape, strides, *others = own
            kept = (*shape[:2], *shape[3:], *strides[2:])
            own = [kept if place in keys else len(shape), *others]
        found += [int] if type(tensor) is int else own
    return tuple(found + rest)


def settings(device: torch.device) -> tuple[Hashable, ...]:
    """Return a device, and the settings of torch and environment for calls on it."""
    if device == CPU:
        cast = is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        machine = environment.get(MACHINE)
        return device, cast, is_deterministic(), torch.get_num_threads(), machine
    cast = is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return device, cast, is_deterministic(), precision_of("cuda", "matmul")


def stream_facts(device: torch.device) -> Hashable:
    """Return the stream on which a tape's constants are made, and if a graph captures.

    Other streams would not wait for the constants, and a CUDA graph would outlive them.
    """
    if device == CPU:
        return None
    return stream_of(device), torch.cuda.is_current_stream_capturing()
