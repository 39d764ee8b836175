"""What a mod computes under `torch.no_grad()` has no derivative."""

from __future__ import annotations

from typing import Any

from torch import Tensor, is_grad_enabled
from torch.overrides import TorchFunctionMode


class DetachWithoutGrad(TorchFunctionMode):
    """Under it, results are detached where gradients are disabled.

    A trace does not record that they are. It must be made with gradients enabled,
    whatever the mode of the call that it is made for.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_grad_enabled() or not isinstance(result, Tensor):
            return result
        return result.detach() if result.is_floating_point() else result
