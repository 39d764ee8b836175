"""In which stream of a GPU tables are made, and whether they may be kept."""

from __future__ import annotations

import torch
from torch import Tensor


def is_capturing(tensor: Tensor) -> bool:
    """Whether what is made now would be there after a replay only."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def stream_of(tensor: Tensor) -> int | None:
    """The current stream: others would have to wait for what is made in it."""
    if not tensor.is_cuda:
        return None
    return torch.cuda.current_stream(tensor.device).cuda_stream
