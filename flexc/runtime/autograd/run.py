"""Running a call, recorded where something is to be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.derivatives import check_gradient
from flexc.runtime.autograd.functions import FlexAttentionFunction
from flexc.runtime.autograd.template import Results, Template, split
from flexc.runtime.inputs.transforms import is_transformed
from flexc.runtime.tapes.modes import unseen

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


def run_attention(call: Attention) -> Results:
    """Run a call, recorded by autograd where an input asks for it."""
    call = call.with_traced()
    if is_differentiated(call):
        check_gradient(call.trace())
    elif not is_transformed():
        return call.run()
    return run_template(*split(settle(call)))


def settle(call: Attention) -> Attention:
    """The call with its blocks listed, for its derivatives too.

    Within transforms tables would have another form for each of the tensors that they
    wrap: they are found for these.
    """
    if is_transformed() or not call.has_pairs:
        return call
    with unseen(), torch.no_grad():
        return call.settle(both=True)


def run_template(template: Template, tensors: Sequence[Tensor]) -> Results:
    """Run a call that was split, recorded by autograd."""
    blank = template.blank
    if blank and derivatives.has_kernels(blank.backend) and not is_transformed():
        start(template, tensors)
    return _asked(template, FlexAttentionFunction.apply(template, *tensors))


def start(template: Template, tensors: Sequence[Tensor]) -> None:
    """Start to compile a call's kernel and those of its gradients, side by side."""
    wanted = template.wanted(tuple(t.requires_grad for t in tensors))
    if not (wanted and torch.is_grad_enabled()):
        return
    call = template.bind(tensors)
    with unseen(), torch.no_grad():
        call.start()
        # What cannot be differentiated can be called: gradients say so themselves.
        with suppress(Exception):
            derivatives.start(call, wanted)


def run_plain(template: Template, tensors: Sequence[Tensor]) -> Results:
    """Run a call that no transform sees."""
    return _asked(template, _apply(template, *tensors))


_base: Any = super(torch.autograd.Function, FlexAttentionFunction)
_apply = _base.apply
"""The `apply` that does not look whether a transform is active."""


def _asked(template: Template, results: Any) -> Results:
    """The results that the call asked for."""
    out, lse, max_scores = results
    if not template.wants_lse:
        return out, None, max_scores
    return out, lse[:, 0] if template.lse_rest else lse, max_scores


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
