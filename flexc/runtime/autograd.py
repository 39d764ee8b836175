"""The autograd Function through which every differentiable call goes."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.runtime.call import Attention


class FlexAttentionFunction(torch.autograd.Function):
    """Forward attention. Its backward is not there yet, and says so."""

    @staticmethod
    def forward(ctx: Any, call: Attention, *inputs: Tensor) -> Any:
        """Run the call; `inputs` only tell autograd what depends on what."""
        return call.run()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        raise GradientError(
            "flexc computes the forward of attention only, so far; wrap the call in "
            "torch.no_grad(), or train with torch's flex_attention"
        )


def run_attention(call: Attention) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run a call, recorded by autograd where an input asks for it."""
    if not torch.is_grad_enabled():
        return call.run()
    inputs = [call.query, call.key, call.value]
    inputs += [c for c in call.signature.captures if isinstance(c, Tensor)]
    if not any(t.requires_grad for t in inputs):
        return call.run()
    return FlexAttentionFunction.apply(call, *inputs)
