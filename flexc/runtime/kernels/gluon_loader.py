"""Loading of printed Gluon kernels, and their tensor maps.

A tensor map describes a tensor to the GPU's tile copies (TMA). The map holds an
address, sizes and strides, and does not keep the tensor alive. A map stays valid for
any tensor with the same address, sizes and strides, so flexc caches maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from flexc.runtime.inputs.tensor_facts import ALIGNMENT
from flexc.runtime.kernels.gluon_compiler import GLUON
from flexc.runtime.kernels.triton_compiler import Entry
from flexc.runtime.kernels.triton_loader import OnDevice, TritonKernel
from flexc.runtime.tapes.gpus import capability

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


class GluonKernel(TritonKernel):
    """A printed kernel with tensor maps for its descriptors."""

    def maps(self, device: torch.device, position: int, extents: Extents) -> Maps:
        """Return the maps for the address at a position among a launch's values.

        The maps belong to tensors of these sizes and strides.
        """
        return self._kernel(device).at(position).maps(extents)

    def load(
        self, device: torch.device, args: Sequence[Any], entry: Entry | None
    ) -> OnDevice:
        spec = self.spec
        kernel = GLUON.take(spec, capability(device), entry)
        metas = iter(kernel.metadata.tensordesc_meta)
        maps = tuple(
            TensorMaps(next(metas)) if p.kind == "descriptor" else None
            for p in spec.params
        )
        kernel = GLUON.expand(kernel, spec)
        assert kernel.run is not None  # Loads the kernel now.
        return OnDevice(spec, kernel, maps)
