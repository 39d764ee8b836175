"""Modes of torch that watch every operation: attention is one, whatever it is made of.

Selective checkpointing counts operations, and the first call of a kind has more than
those that follow it: it is traced and compiled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from flexc.runtime.tapes.recorder import recorder

_NOTHING = nullcontext()


def is_watched() -> bool:
    """Whether some mode sees operations."""
    return torch._C._len_torch_dispatch_stack() > 0


def unseen() -> AbstractContextManager[Any]:
    """Where no mode sees the operations that a call is computed by, but a recorder."""
    is_seen = is_watched() and recorder() is None
    return _disable_current_modes() if is_seen else _NOTHING
