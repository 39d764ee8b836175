"""The inputs that a kernel is made for, apart from the mods.

These inputs are a class of calls, a backend, a device and options.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from flexc.frontend.import_graph import AttentionCall
from flexc.passes.targets.target import HOPPER_SHARED_MEMORY, F32Precision, MachineName
from flexc.runtime.inputs.options import BACKENDS, NO_OPTIONS, TRITON, TileOptions
from flexc.runtime.kernels.cpp_compiler import host_machine
from flexc.runtime.tapes.gpus import capability

Roles = Literal["cannot", "may", "must"]


@dataclass(frozen=True)
class Build:
    """The inputs that a kernel is made for, apart from the mods."""

    call: AttentionCall
    backend: str
    device: str
    tiles: TileOptions
    shared_memory: int = HOPPER_SHARED_MEMORY
    """The bytes of shared memory that one program may use on a GPU."""
    f32_precision: F32Precision = "ieee"
    """The precision in which a GPU computes products of fp32."""
    derivative: bool = False
    """True if the kernel belongs to a derivative."""
    roles: Roles = "may"
    """The use of schedules with roles on a GPU; "must" allows no others."""
    capability: int | None = None
    """The compute capability of a GPU; None if flexc does not need the capability."""
    machine: MachineName = "avx2"
    """The CPU whose vector width the kernel uses."""
    program_rows: int | None = None
    """The most rows of a program: few on Hopper if programs are few, and on a CPU if
    rows are. None for no limit.
    """

    @property
    def for_gpu(self) -> bool:
        return BACKENDS[self.backend].for_gpu

    @property
    def for_cpu(self) -> bool:
        return BACKENDS[self.backend].for_cpu

    @property
    def target(self) -> str:
        """Return the name of the target that can print every kernel.

        Triton's for a backend without kernels, whose calls are only explained.
        """
        return next(iter(BACKENDS[self.backend].targets), TRITON.name)


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use on a device."""
    if device.type != "cuda":
        return HOPPER_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def machine_for(backend: str) -> MachineName:
    """Return the machine that a backend's kernels are built for.

    Backends other than "cpp" do not depend on the machine and get the default.
    """
    return host_machine() if BACKENDS[backend].for_cpu else Build.machine


NO_CALL = AttentionCall(torch.float32, head_dim=1, value_dim=1)
"""A call of which the kernels of plans depend on no fact."""


def build_of(call: AttentionCall, device: torch.device, backend: str) -> Build:
    """Return the build of planning kernels for a call's facts, device and backend."""
    return Build(
        call,
        backend,
        device.type,
        NO_OPTIONS,
        shared_memory(device),
        capability=capability(device) if BACKENDS[backend].for_gpu else None,
        machine=machine_for(backend),
    )
