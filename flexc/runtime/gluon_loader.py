"""From printed Gluon kernels to something that can be launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.gluon_compiler import expanded, take_kernel
from flexc.runtime.gpus import capability
from flexc.runtime.prepared import Address, Prepared
from flexc.runtime.tensor_maps import Extents, Maps, TensorMaps
from flexc.runtime.triton_compiler import Entry
from flexc.runtime.triton_loader import OnGrid


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
