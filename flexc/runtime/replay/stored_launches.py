"""Launches on the disk: which kernel of the cache, on which grid, with which values."""

from __future__ import annotations

from typing import Any

import torch

from flexc.runtime.kernels.cpp_library import (
    CppFunction,
    Symbol,
    open_symbol,
)
from flexc.runtime.process.cache import load, store
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay.stable_text import UnstableError
from flexc.runtime.tapes.streams import CPU, on_device
from flexc.runtime.tapes.tape import Launch, Place

NUMBERS = frozenset({int, float, bool, type(None)})

ORDER = "order"
"""The name of the kernel of a GPU that orders blocks, whose source is flexc's own."""

_kernels: Recent[Any] = Recent()
"""A GPU's kernels, loaded once, by the names of their entries."""


class MissingError(Exception):
    """A kernel that a tape names is not in the cache any more."""


def written_launch(launch: Launch) -> list[Any]:
    """Return JSON for a launch; the kernel of a GPU is stored if need be.

    Raises:
        UnstableError: if it takes values that JSON does not hold.
        FlexcError: if the kernel cannot be stored.
    """
    if not NUMBERS.issuperset(map(type, launch.values)):
        raise UnstableError(f"a launch of {launch.values}")
    launcher: Any = launch.launcher
    if isinstance(launcher, CppFunction):
        places = [place[:3] for place in launch.places]
        return [launcher.symbol, launch.values, places]
    places = [[*place[:3], _extents(place)] for place in launch.places]
    from flexc.runtime.kernels.triton_compiler import Entry

    entry = Entry.of(launcher.kernel)
    kernel = [_store(launcher.spec), launcher.grid, entry]
    return [kernel, launch.values, places]


def _extents(place: Place) -> Any:
    """Return sizes and strides of the tensor whose map stands for its address."""
    maps: Any = place.make
    return None if maps is None else maps.extents


def _store(spec: Any) -> str:
    """Store a kernel's spec, and return the name of its entry."""
    if spec is None:
        return ORDER
    name = f"kernel-{spec.digest}.json"
    store(name, spec.to_json().encode())
    return name


class LaunchReader:
    """Makes launches on one device, as `written_launch` says."""

    def __init__(self, device: torch.device):
        self.device = device
        self._functions: dict[Symbol, CppFunction] = {}

    def read(self, kernel: Any, values: list[Any], places: list[Any]) -> Launch:
        if self.device == CPU:
            taken = [Place(at, slot, offset, None) for at, slot, offset in places]
            return Launch(self._function(*kernel), values, tuple(taken), False)
        from flexc.runtime.kernels.triton_compiler import Entry

        name, grid, entry = kernel
        loaded = _kernels.get(name, lambda: _opened(name))
        given = (self.device, tuple(grid), len(values), Entry(*entry))
        with on_device(self.device):
            launcher = loaded.launcher(*given)
            taken = [
                Place(at, slot, offset, self._maps(loaded, at, extents))
                for at, slot, offset, extents in places
            ]
        return Launch(launcher, values, tuple(taken), True)

    def _maps(self, loaded: Any, position: int, extents: Any) -> Any:
        """Return what makes maps of a tensor's addresses, if its kernel takes maps."""
        if extents is None:
            return None
        sizes, steps = map(tuple, extents)
        return loaded.maps(self.device, position, (sizes, steps))

    def _function(self, file: str, name: str, types: list[str]) -> CppFunction:
        symbol = Symbol(file, name, tuple(types))
        if symbol not in self._functions:
            if load(file) is None:
                raise MissingError(file)
            self._functions[symbol] = open_symbol(symbol)
        return self._functions[symbol]


def _opened(name: str) -> Any:
    """Return a GPU's kernel, which is loaded to a device when it is launched there."""
    if name == ORDER:
        from flexc.runtime.kernels.ordering_triton import ORDER as kernel

        return kernel
    from flexc.codegen.kernel_spec import KernelSpec
    from flexc.runtime.kernels.kernel import load as load_spec

    data = load(name)
    if data is None:
        raise MissingError(name)
    return load_spec(KernelSpec.from_json(data.decode()))
