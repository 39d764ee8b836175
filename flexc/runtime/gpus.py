"""What a GPU is and can do."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch

HOPPER = 90
"""The capability of an H100, ten times its major number and the minor one."""


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


def gpu_facts(device: torch.device) -> Hashable:
    """Return what kernels of a GPU are compiled for, and what the environment asks."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    asked = sorted(get_cache_invalidating_env_vars().items())
    return (*properties(device), *asked)


@cache
def properties(device: torch.device) -> tuple[Hashable, ...]:
    """Return what a GPU is and can do, as far as choices of kernels depend on it."""
    found: Any = torch.cuda.get_device_properties(device)
    limits = (found.multi_processor_count, found.shared_memory_per_block_optin)
    return found.name, found.major, found.minor, *limits, torch.version.cuda
