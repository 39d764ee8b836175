"""The properties of a GPU on which compiled kernels depend."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

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
