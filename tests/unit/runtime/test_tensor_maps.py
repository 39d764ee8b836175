"""What GPUs copy tiles by: made once for an address, sizes and strides."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from flexc.runtime.kernels import gluon_loader as tensor_maps
from flexc.runtime.kernels.gluon_loader import TensorMaps, regular_strides

META = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [1, 1, 64, 64]}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What CUDA was asked to make maps of."""
    asked: list[tuple[Any, ...]] = []

    def make(*given: Any) -> int:
        asked.append(given)
        return len(asked)

    monkeypatch.setattr(tensor_maps, "map_maker", lambda: make)
    return asked


def passed(maps: TensorMaps, tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a kernel is passed for a tensor."""
    return maps.maker(tensor)(tensor.data_ptr()), *maps.extents(tensor)


def test_a_map_is_made_once(made: list[tuple[Any, ...]]) -> None:
    maps, tensor = TensorMaps(META), torch.zeros(2, 3, 70, 64, dtype=torch.bfloat16)
    first = passed(maps, tensor)
    assert first == (1, 2, 3, 70, 64, 13440, 4480, 64, 1)
    assert passed(maps, tensor.view(2, 3, 70, 64)) == first
    assert len(made) == 1
    address, swizzle, size, kind, box, shape, strides, fill = made[0]
    assert address == tensor.data_ptr()
    assert (swizzle, size, kind, box, fill) == (3, 2, 9, [1, 1, 64, 64], 0)
    assert (*shape, *strides) == first[1:]
    assert passed(maps, tensor[:, :, 1:]) != first
    assert passed(maps, tensor[:, :, :60]) != first
    assert passed(maps, tensor.transpose(0, 1)) != first
    assert len(made) == 4


def test_tensors_are_not_kept(made: list[tuple[Any, ...]]) -> None:
    maps, tensor = TensorMaps(META), torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    passed(maps, tensor)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None


def test_few_maps_are_kept(
    made: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_maps, "MAX_MAPS", 2)
    maps, whole = TensorMaps(META), torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    for length in (1, 2, 3, 4):
        passed(maps, whole[:, :, :length])
    assert len(maps._known) <= 2


@pytest.mark.parametrize(
    ("sizes", "strides", "expected"),
    [
        ((2, 3, 70, 64), (13440, 4480, 64, 1), (13440, 4480, 64, 1)),
        ((1, 1, 1, 64), (7, 3, 5, 1), (8, 8, 8, 1)),
        ((2, 3, 70, 64), (0, 0, 64, 1), (0, 0, 64, 1)),
        ((2, 3, 70, 1), (1680, 560, 8, 77), (1680, 560, 8, 1)),
        ((1, 3, 70, 64), (1 << 60, 4480, 64, 1), (8, 4480, 64, 1)),
    ],
    ids=["contiguous", "single", "expanded", "one column", "far"],
)
def test_strides(
    sizes: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Those of single elements may be any, and are made ones that CUDA takes."""
    assert regular_strides(sizes, strides, itemsize=2) == expected
