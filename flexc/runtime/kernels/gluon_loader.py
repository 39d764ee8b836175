"""Loading of printed Gluon kernels, and their tensor maps.

A tensor map describes a tensor to the GPU's tile copies (TMA). The map holds an
address, sizes and strides, and does not keep the tensor alive. A map stays valid for
any tensor with the same address, sizes and strides, so flexc caches maps.
"""

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
from flexc.runtime.kernels.gluon_compiler import GLUON
from flexc.runtime.kernels.triton_compiler import Entry
from flexc.runtime.kernels.triton_loader import OnGrid
from flexc.runtime.tapes.gpus import capability
from flexc.runtime.tapes.tape import Address, Prepared

MAX_MAPS = 256
"""The limit of pairs of sizes and strides per parameter, and of addresses per pair."""

Extents = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides, in elements."""


class Maps(dict[int, Any]):
    """A cache from addresses of tensors of equal sizes and strides to tensor maps."""

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
    """The tensor maps for one parameter of a kernel."""

    def __init__(self, meta: Mapping[str, Any]):
        self._meta = meta
        self._known: dict[Any, Maps] = {}

    def maker(self, tensor: Tensor) -> Maps:
        """Return the cache of maps for tensors with a tensor's sizes and strides."""
        return self.maps(self._extents(tensor))

    def maps(self, extents: Extents) -> Maps:
        """Return the cache of maps for tensors of these sizes and strides."""
        known = self._known.get(extents)
        if known is None:
            if len(self._known) >= MAX_MAPS:
                self._known.clear()
            sizes, steps = extents
            make = partial(self._make, sizes=sizes, steps=steps)
            known = self._known[extents] = Maps(make, extents)
        return known

    def extents(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the sizes and strides that a kernel takes after a tensor map."""
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
            0,  # Reads outside of the tensor yield 0.
        )


def map_maker() -> Any:
    """Return Triton's wrapper of CUDA's `cuTensorMapEncodeTiled`."""
    driver: Any = triton.runtime.driver.active
    utils = driver.utils
    newer = getattr(utils, "fill_tma_descriptor_tiled", None)
    return newer or utils.fill_tma_descriptor


def regular_strides(
    sizes: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, ...]:
    """Return strides from which a tensor map can be made.

    Strides of dimensions of size 1 are replaced, since any stride is valid there. The
    caller guarantees adjacent elements in the last dimension and aligned other strides.
    """
    found = [1]
    unit = ALIGNMENT // itemsize
    for size, stride in zip(reversed(sizes[:-1]), reversed(strides[:-1]), strict=True):
        found.append(unit if size == 1 else stride)
    return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A kernel on one device, with the tensor maps of its parameters."""

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
        """Return the maps of the parameter at a position among a launch's values.

        Raise KeyError if no descriptor is there.
        """
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
        """Return a launcher of the kernel with `count` values on a grid of a device."""
        return OnGrid(self._kernel(device, entry).kernel, grid, count, self.spec)

    def maps(self, device: torch.device, position: int, extents: Extents) -> Maps:
        """Return the maps for the address at a position among a launch's values.

        The maps belong to tensors of these sizes and strides.
        """
        return self._kernel(device).at(position).maps(extents)

    def _kernel(self, device: torch.device, entry: Entry | None = None) -> OnDevice:
        kernel = self._on.get(device.index)
        if kernel is None:
            kernel = self._on[device.index] = load_on(self.spec, device, entry)
        return kernel

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> NoReturn:
        raise AssertionError("Gluon kernels are launched")


def load_on(spec: KernelSpec, device: torch.device, entry: Entry | None) -> OnDevice:
    """Compile and load a kernel for `device`, which must be the current device."""
    kernel = GLUON.take(spec, capability(device), entry)
    metas = iter(kernel.metadata.tensordesc_meta)
    maps = tuple(
        TensorMaps(next(metas)) if p.kind == "descriptor" else None for p in spec.params
    )
    kernel = GLUON.expand(kernel, spec)
    assert kernel.run is not None  # Loads the kernel now.
    return OnDevice(spec, kernel, maps)
