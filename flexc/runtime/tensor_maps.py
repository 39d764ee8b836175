"""Tensor maps: what a GPU's copies of tiles (TMA) know of a tensor.

A map holds an address, sizes and strides, and nothing of the tensor's life: so it is
right again wherever a tensor has all these again, and maps are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import triton
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from flexc.runtime.tensor_facts import ALIGNMENT

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
