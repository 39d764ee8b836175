"""What a kernel is made for besides mods: a class of calls, a backend, a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from flexc.frontend.import_graph import AttentionCall
from flexc.passes.pipelines import F32Precision
from flexc.passes.tile_sizes import HOPPER_SHARED_MEMORY
from flexc.passes.vector_machine import MachineName
from flexc.runtime.cpp_compiler import host_machine
from flexc.runtime.options import TileOptions

HOPPER = 90
"""The capability of an H100, ten times its major number and the minor one."""


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


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs a GPU runs at a time, at least; an H100, without one."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def capability(device: torch.device) -> int:
    """What a GPU can do; an H100's, where kernels for a GPU are made without one."""
    if device.type != "cuda":
        return HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def machine_for(backend: str) -> MachineName:
    """The machine that a backend's kernels are for: other than a CPU's ask for none."""
    return host_machine() if backend == "cpp" else Build.machine
