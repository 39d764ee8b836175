"""From printed Gluon kernels to something that can be launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.build import capability
from flexc.runtime.gluon_compiler import expanded, take_kernel
from flexc.runtime.tensor_maps import TensorMaps
from flexc.runtime.triton_loader import (
    DirectLaunch,
    Launcher,
    current_stream,
    is_watched,
    on_device,
)

Passed = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A kernel on one device, and the maps of the tensors that it copies."""

    launch: DirectLaunch
    maps: tuple[TensorMaps | None, ...]

    def values(self, args: Sequence[Any]) -> list[Any]:
        """What its launcher takes for a kernel's arguments."""
        found: list[Any] = []
        for arg, maps in zip(args, self.maps, strict=True):
            if maps is not None:
                found += maps.of(arg)
            elif isinstance(arg, Tensor):
                found.append(arg.data_ptr())
            else:
                found.append(arg)
        return found


def load_on(spec: KernelSpec, device: torch.device) -> Loaded:
    """Compile and load a kernel for the current device, which is this one."""
    kernel = take_kernel(spec, capability(device))
    metas = iter(kernel.metadata.tensordesc_meta)
    maps = tuple(
        TensorMaps(next(metas)) if p.kind == "descriptor" else None for p in spec.params
    )
    kernel = expanded(kernel, spec)
    assert kernel.run is not None  # Loaded here, and not at the first launch.
    return Loaded(DirectLaunch(kernel), maps)


def load_gluon(spec: KernelSpec) -> Launcher:
    """A function that launches a kernel on a grid with its arguments.

    It is loaded to each device at its first launch there.
    """
    loaded: dict[int, Loaded] = {}

    def launch(grid: tuple[int, ...], args: Sequence[Any]) -> None:
        device = next(a.device for a in args if isinstance(a, Tensor))
        with on_device(device):
            kernel = loaded.get(device.index)
            if kernel is None:
                kernel = loaded[device.index] = load_on(spec, device)
            values = kernel.values(args)
            kernel.launch(grid, current_stream(device), values, is_watched())

    return launch
