"""The properties of a GPU on which compiled kernels depend; its current stream."""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

TRITON_VARIABLES = (
    "TRITON_",
    "PTXAS_",
    "MLIR_",
    "LLVM_",
    "DISABLE_",
    "AMDGCN_",
    "ENABLE_",
    "NVPTX_",
)
"""Prefixes of the environment variables that configure Triton's compiler."""

HOPPER = 90
"""The compute capability of an H100: ten times the major number plus the minor one."""


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU, an H100's for another device."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def capability(device: torch.device) -> int:
    """Return the compute capability of a GPU, an H100's for another device."""
    if device.type != "cuda":
        return HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def gpu_facts(device: torch.device) -> Hashable:
    """Return all facts that a GPU's compiled kernels depend on.

    These are the GPU, the versions of its compilers, and the variables that configure
    Triton.
    """
    asked = sorted(v for v in os.environ.items() if v[0].startswith(TRITON_VARIABLES))
    ptxas = os.environ.get("TRITON_PTXAS_PATH")
    return (*properties(device), _state(ptxas), *asked)


def _state(path: str | None) -> tuple[int, int] | None:
    """Return time and size of a file, None if the file does not exist."""
    if path is None or not os.path.exists(path):
        return None
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


@cache
def properties(device: torch.device) -> tuple[Hashable, ...]:
    """Return the properties of a GPU and of its compilers that affect kernels."""
    found: Any = torch.cuda.get_device_properties(device)
    limits = (found.multi_processor_count, found.shared_memory_per_block_optin)
    library = find_spec("triton._C.libtriton")
    triton = library and _state(library.origin)
    gpu = found.name, found.major, found.minor
    return *gpu, *limits, torch.version.cuda, triton


ON_CURRENT = nullcontext()

raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""A function that returns the number of a GPU's current stream. None without CUDA."""
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
"""A function that returns the number of the current GPU. None without CUDA."""


CPU = torch.device("cpu")
"""The CPU device. Comparing with it is faster than reading a device's type."""


def is_current(device: torch.device) -> bool:
    """Return True if launches go to this device."""
    return device == CPU or device.index == current_device()


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current device within a `with` block, if it is not."""
    return ON_CURRENT if is_current(device) else torch.cuda.device(device)


def is_capturing(tensor: Tensor) -> bool:
    """Return True within the capture of a CUDA graph, which writes no memory."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def stream_of(device: torch.device) -> int | None:
    """Return the number of a GPU's current stream, None on a CPU."""
    is_gpu = device != CPU and device.type == "cuda"
    return raw_stream(device.index) if is_gpu else None
