"""Run a call, recorded by autograd where a derivative may be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.derivatives import check_gradient
from flexc.runtime.autograd.functions import FlexAttentionFunction
from flexc.runtime.autograd.template import Results, Template, split
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.tapes.recorder import without_dispatch_modes

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


def run_attention(call: Attention) -> Results:
    """Run a call. Autograd records it if an input requires a gradient."""
    call = call.with_traced()
    if is_differentiated(call):
        check_gradient(call.trace())
    elif not is_transformed():
        return derivatives.run(call)
    return run_template(*split(settle(call)))


def settle(call: Attention) -> Attention:
    """Return the call with its tables of blocks, also those of its derivatives.

    Within transforms, the call is returned unchanged. Its tables are found later, for
    the tensors within the wrappers.
    """
    if is_transformed() or not call.has_pairs:
        return call
    with without_dispatch_modes(), torch.no_grad():
        return call.settle(both=True)


def run_template(template: Template, tensors: Sequence[Tensor]) -> Results:
    """Run a call that was split into template and tensors, recorded by autograd."""
    blank = template.blank
    if blank and derivatives.has_kernels(blank.backend) and not is_transformed():
        start(template, tensors)
    return _asked(template, FlexAttentionFunction.apply(template, *tensors))


def start(template: Template, tensors: Sequence[Tensor]) -> None:
    """Start to compile a call's kernel and those of its gradients, in parallel."""
    wanted = template.wanted(tuple(t.requires_grad for t in tensors))
    if not (any(wanted) and torch.is_grad_enabled()):
        return
    call = template.bind(tensors)
    with without_dispatch_modes(), torch.no_grad():
        derivatives.start(call, wanted)


def run_plain(template: Template, tensors: Sequence[Tensor]) -> Results:
    """Run a call that no transform of torch.func wraps."""
    return _asked(template, _apply(template, *tensors))


_base: Any = super(torch.autograd.Function, FlexAttentionFunction)
_apply = _base.apply
"""The `apply` that does not check for active transforms."""


def _asked(template: Template, results: Any) -> Results:
    """Return the results that the call asked for."""
    out, lse, max_scores = results
    if not template.wants_lse:
        return out, None, max_scores
    return out, lse[:, 0] if template.lse_rest else lse, max_scores


def is_differentiated(call: Attention) -> bool:
    """Return True if autograd or forward mode may ask for derivatives of the call."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    if call.query.requires_grad or call.key.requires_grad or call.value.requires_grad:
        return True
    captures = call.signature.captures
    return any(isinstance(c, Tensor) and c.requires_grad for c in captures)
