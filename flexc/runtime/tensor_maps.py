"""Tensor maps: what a GPU's copies of tiles (TMA) know of a tensor.

A map holds an address, sizes and strides, and nothing of the tensor's life: so it is
right again wherever a tensor has all these again, and maps are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from flexc.runtime.tensor_facts import ALIGNMENT

MAX_MAPS = 1024


class TensorMaps:
    """The maps for one parameter of a kernel, from tensors to what it is passed."""

    def __init__(self, meta: Mapping[str, Any]):
        self._meta = meta
        self._known: dict[Any, tuple[Any, ...]] = {}

    def of(self, tensor: Tensor) -> tuple[Any, ...]:
        """A map, and the sizes and strides that go with it."""
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_MAPS:
                self._known.clear()
            found = self._known[key] = self._make(*key)
        return found

    def _make(
        self, address: int, shape: Sequence[int], strides: Sequence[int]
    ) -> tuple[Any, ...]:
        meta = self._meta
        sizes = tuple(shape)
        steps = regular_strides(sizes, strides, meta["elem_size"])
        made = map_maker()(
            address,
            meta["swizzle"],
            meta["elem_size"],
            TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]],
            meta["block_size"],
            sizes,
            steps,
            0,  # What lies outside is 0.
        )
        return made, *sizes, *steps


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
