"""What a kernel is made for besides mods: a class of calls, a backend, a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from flexc.frontend.import_graph import AttentionCall
from flexc.passes.pipelines import F32Precision
from flexc.passes.sizes.tile_sizes import HOPPER_SHARED_MEMORY
from flexc.passes.sizes.vector_machine import MachineName
from flexc.runtime.inputs.options import TileOptions
from flexc.runtime.kernels.cpp_compiler import host_machine


@dataclass(frozen=True)
class Build:
    """Everything but the mods that a kernel is made for."""

    call: AttentionCall
    backend: str
    device: str
    tiles: TileOptions
    shared_memory: int = HOPPER_SHARED_MEMORY
    """Bytes of shared memory that a program may have on a GPU."""
    f32_precision: F32Precision = "ieee"
    """How a GPU computes products of fp32."""
    derivative: bool = False
    """The kernel is one of a derivative."""
    capability: int | None = None
    """What a GPU can do; None for one of which that is not asked."""
    machine: MachineName = "avx2"
    """Whose vectors a CPU's kernel is for."""
    program_rows: int | None = None
    """The most rows of a program on Hopper; None where there are many programs."""


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have."""
    if device.type != "cuda":
        return HOPPER_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def machine_for(backend: str) -> MachineName:
    """The machine that a backend's kernels are for: other than a CPU's ask for none."""
    return host_machine() if backend == "cpp" else Build.machine
