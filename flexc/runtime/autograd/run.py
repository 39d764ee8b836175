"""Running a call, recorded where something is to be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexc.runtime.autograd.functions import FlexAttentionFunction
from flexc.runtime.autograd.template import Template, split
from flexc.runtime.call import Attention
from flexc.runtime.derivatives import check_gradient
from flexc.runtime.transforms import is_transformed

Results = tuple[Tensor, Tensor | None, Tensor | None]


def run_attention(call: Attention) -> Results:
    """Run a call, recorded by autograd where an input asks for it."""
    call = call.with_traced()
    if is_differentiated(call):
        check_gradient(call.trace())
    elif not is_transformed():
        return call.run()
    return run_template(call, *split(call))


def run_template(
    call: Attention, template: Template, tensors: Sequence[Tensor]
) -> Results:
    """Run a call that was split, recorded by autograd."""
    results: Any = FlexAttentionFunction.apply(template, *tensors)
    out, lse, max_scores = results
    if not call.outputs.lse:
        return out, None, max_scores
    has_parts = template.blank.outputs.lse_parts
    return out, lse.sum(-1) if has_parts else lse, max_scores


def is_differentiated(call: Attention) -> bool:
    """Whether derivatives may be asked for, as far as torch has been told."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    if call.query.requires_grad or call.key.requires_grad or call.value.requires_grad:
        return True
    captures = call.signature.captures
    return any(isinstance(c, Tensor) and c.requires_grad for c in captures)
