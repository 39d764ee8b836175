"""A GPU's current device and stream, and whether what is made there may be kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

ON_CURRENT = nullcontext()

raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The current stream of a GPU, by its number; None without CUDA."""
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
"""The number of the current GPU."""


CPU = torch.device("cpu")
"""To compare with it takes a quarter of the time of asking for a device's type."""


def is_current(device: torch.device) -> bool:
    """Whether launches go to a device that tensors are on."""
    return device == CPU or device.index == current_device()


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a tensor's device the current one, if it is a GPU and is not that."""
    return ON_CURRENT if is_current(device) else torch.cuda.device(device)


def is_capturing(tensor: Tensor) -> bool:
    """Whether what is made now would be there after a replay only."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def stream_of(device: torch.device) -> int | None:
    """The current stream of a GPU, as CUDA knows it; None on a CPU."""
    is_gpu = device != CPU and device.type == "cuda"
    return raw_stream(device.index) if is_gpu else None
