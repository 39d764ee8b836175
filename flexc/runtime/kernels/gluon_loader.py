"""From printed Gluon kernels to something that can be launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
import triton
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.inputs.tensor_facts import ALIGNMENT
from flexc.runtime.kernels.gluon_compiler import expanded, take_kernel
from flexc.runtime.kernels.triton_compiler import Entry
from flexc.runtime.kernels.triton_loader import OnGrid
from flexc.runtime.tapes.gpus import capability
from flexc.runtime.tapes.prepared import Address, Prepared

# Tensor maps: what a GPU's copies of tiles (TMA) know of a tensor.
#
# A map holds an address, sizes and strides, and nothing of the tensor's life: so it is
# right again wherever a tensor has all these again, and maps are kept.


MAX_MAPS = 256
"""Of a parameter: kinds of tensors, and addresses of each."""

Extents = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides, in elements."""


class Maps(dict[int, Any]):
    """From addresses of tensors of a kind to their maps, made where they lack."""

    def __init__(self, make: Callable[[int], Any], extents: Extents):
        super().__init__()
        self._make = make
        self.extents = extents

    __call__ = dict[int, Any].__getitem__

    def __missing__(self, address: int) -> Any:
        if len(self) >= MAX_MAPS:
            self.clear()
        found = self[address] = self._make(address)
        return found


class TensorMaps:
    """The maps for one parameter of a kernel, from tensors to what it is passed."""

    def __init__(self, meta: Mapping[str, Any]):
        self._meta = meta
        self._known: dict[Any, Maps] = {}

    def maker(self, tensor: Tensor) -> Maps:
        """What makes the map of such a tensor at an address, or has made it."""
        return self.maps(self._extents(tensor))

    def maps(self, extents: Extents) -> Maps:
        """Return the maps of all tensors of these sizes and strides."""
        known = self._known.get(extents)
        if known is None:
            if len(self._known) >= MAX_MAPS:
                self._known.clear()
            sizes, steps = extents
            make = partial(self._make, sizes=sizes, steps=steps)
            known = self._known[extents] = Maps(make, extents)
        return known

    def extents(self, tensor: Tensor) -> tuple[int, ...]:
        """The sizes and strides that a kernel is passed behind a map."""
        sizes, steps = self._extents(tensor)
        return *sizes, *steps

    def _extents(self, tensor: Tensor) -> Extents:
        sizes = tuple(tensor.shape)
        size = self._meta["elem_size"]
        return sizes, regular_strides(sizes, tensor.stride(), size)

    def _make(
        self, address: int, sizes: tuple[int, ...], steps: tuple[int, ...]
    ) -> Any:
        meta = self._meta
        return map_maker()(
            address,
            meta["swizzle"],
            meta["elem_size"],
            TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]],
            meta["block_size"],
            sizes,
            steps,
            0,  # What lies outside is 0.
        )


def map_maker() -> Any:
    """Triton's function around CUDA's `cuTensorMapEncodeTiled`."""
    driver: Any = triton.runtime.driver.active
    utils = driver.utils
    newer = getattr(utils, "fill_tma_descriptor_tiled", None)
    return newer or utils.fill_tma_descriptor


def regular_strides(
    sizes: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, ...]:
    """Strides with which a map can be made: those of single elements may be any.

    Elements of the last dimension are neighbours, and all else is aligned.
    """
    found = [1]
    unit = ALIGNMENT // itemsize
    for size, stride in zip(reversed(sizes[:-1]), reversed(strides[:-1]), strict=True):
        found.append(unit if size == 1 else stride)
    return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A kernel on one device, and the maps of the tensors that it copies."""

    spec: KernelSpec
    kernel: Any
    maps: tuple[TensorMaps | None, ...]

    def prepare(self, grid: tuple[int, ...], args: Sequence[Any]) -> Prepared:
        values: list[Any] = []
        addresses: list[Address] = []
        for number, (arg, maps) in enumerate(zip(args, self.maps, strict=True)):
            if isinstance(arg, Tensor):
                make = None if maps is None else maps.maker(arg)
                addresses.append(Address(len(values), number, make))
                values.append(0)
            else:
                values.append(arg)
            if maps is not None:
                values += maps.extents(arg)
        launcher = OnGrid(self.kernel, grid, len(values), self.spec)
        return Prepared(launcher, values, tuple(addresses), True)

    def at(self, position: int) -> TensorMaps:
        """Return the maps of the parameter at a position among a launch's values."""
        start = 0
        for param, maps in zip(self.spec.params, self.maps, strict=True):
            if start == position and maps is not None:
                return maps
            start += 1 if maps is None else 1 + 2 * len(param.box)
        raise KeyError(position)


class GluonKernel:
    """A printed kernel, loaded to each device at its first launch there."""

    def __init__(self, spec: KernelSpec):
        self.spec = spec
        self._on: dict[int, OnDevice] = {}

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared:
        device = next(a.device for a in args if isinstance(a, Tensor))
        return self._kernel(device).prepare(grid, args)

    def launcher(
        self, device: torch.device, grid: tuple[int, ...], count: int, entry: Entry
    ) -> OnGrid:
        """Return the launcher on a grid of a device, of so many values."""
        return OnGrid(self._kernel(device, entry).kernel, grid, count, self.spec)

    def maps(self, device: torch.device, position: int, extents: Extents) -> Maps:
        """Return the maps whose addresses stand at a position among a launch's values.

        They are of tensors of these sizes and strides.
        """
        return self._kernel(device).at(position).maps(extents)

    def _kernel(self, device: torch.device, entry: Entry | None = None) -> OnDevice:
        kernel = self._on.get(device.index)
        if kernel is None:
            kernel = self._on[device.index] = load_on(self.spec, device, entry)
        return kernel

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> NoReturn:
        raise AssertionError("Gluon kernels are launched")


def load_on(
    spec: KernelSpec, device: torch.device, entry: Entry | None = None
) -> OnDevice:
    """Compile and load a kernel for the current device, which is this one."""
    kernel = take_kernel(spec, capability(device), entry)
    metas = iter(kernel.metadata.tensordesc_meta)
    maps = tuple(
        TensorMaps(next(metas)) if p.kind == "descriptor" else None for p in spec.params
    )
    kernel = expanded(kernel, spec)
    assert kernel.run is not None  # Loaded here, and not at the first launch.
    return OnDevice(spec, kernel, maps)
