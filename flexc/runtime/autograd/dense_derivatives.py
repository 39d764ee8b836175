"""Derivatives of the backend "eager": torch's own, of dense attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.derivatives import (
    Gradients,
    Tangents,
    Wanted,
    inputs_of,
)
from flexc.runtime.interpreters.gradients import run_recorded
from flexc.runtime.interpreters.recorded import Point

AUTOGRAD = (
    torch._C.DispatchKey.AutogradFunctionality,
    torch._C.DispatchKey.AutogradOther,
)


def backward(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The gradients along cotangents."""
    with _recording(call.query.device):
        point = _evaluate(call, wanted.flat)
        return _wanted(point.gradients([d_out, d_lse]), wanted)


def jvp(
    call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
) -> tuple[Tensor, Tensor]:
    """The tangents of out and lse."""
    with _recording(call.query.device):
        point = _evaluate(call, _present(tangents))
        return point.tangents(tangents.flat)


def backward_jvp(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    tangents: Tangents,
    t_d_out: Tensor | None,
    t_d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The tangents of the gradients."""
    present = _present(tangents)
    either = [a or b for a, b in zip(present, wanted.flat, strict=True)]
    with _recording(call.query.device):
        point = _evaluate(call, either)
        found = point.gradient_tangents(
            [d_out, d_lse], [t_d_out, t_d_lse], tangents.flat
        )
    return _wanted(found, wanted)


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Autograd, whatever is around; products as the call's dtypes say."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    # Within an operator of torch, autograd is left out.
    for key in AUTOGRAD:
        exclude = exclude.remove(key)
    with (
        torch._C._ForceDispatchKeyGuard(include, exclude),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _evaluate(call: Attention, differentiable: Sequence[bool]) -> Point:
    leaves: list[Tensor | None] = []
    inputs: list[Tensor | int | float] = []
    for value, is_leaf in zip(inputs_of(call), differentiable, strict=True):
        if isinstance(value, Tensor):
            value = value.detach().requires_grad_(is_leaf)
        leaves.append(value if is_leaf and isinstance(value, Tensor) else None)
        inputs.append(value)
    query, key, value, *captures = inputs
    call = replace(call, outputs=Outputs(lse=True))
    compiled = call.compiled()
    args = [query, key, value, call.scale, *compiled.attention.arguments(captures)]
    if call.tables is not None:
        args += call.tables.tensors
    return Point(leaves, run_recorded(compiled.exact_module, args))


def _present(tangents: Tangents) -> tuple[bool, ...]:
    return tuple(t is not None for t in tangents.flat)


def _wanted(gradients: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
    pairs = zip(gradients, wanted.flat, strict=True)
    return Gradients.of(
        [g.detach().contiguous() if g is not None and w else None for g, w in pairs]
    )
