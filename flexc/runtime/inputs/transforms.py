"""Whether a call is traced, or transformed by torch.func, and what its tensors are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

TRACING_MODES = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def is_transformed() -> bool:
    """Whether a call is under vmap, grad, jvp or their like."""
    return _functorch.maybe_current_level() is not None


def plain(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and strides that no transform knows.

    Of a batched one, the first slice.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        inner = _functorch.get_unwrapped(tensor)
        if _functorch.is_batchedtensor(tensor):
            inner = inner.select(_functorch.maybe_get_bdim(tensor), 0)
        tensor = inner
    return tensor


def tracing(query: Tensor) -> str | None:
    """What a call is traced by, which has no data to compute with; None if it has."""
    if type(query) is not Tensor and isinstance(query, FakeTensor | FunctionalTensor):
        return "a fake tensor"
    if torch._C._len_torch_dispatch_stack():
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, TRACING_MODES):
                return f"a call under {type(mode).__name__}"
    return None
