"""A GPU's current device and stream."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

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
