"""Derivatives of the backend "eager", computed by torch from dense attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.derivatives import (
    Cotangents,
    Direction,
    Gradients,
    Tangents,
    Wanted,
    inputs_of,
)
from flexc.runtime.interpreters.derivatives import RecordedPoint, run_recorded

AUTOGRAD = (
    torch._C.DispatchKey.AutogradFunctionality,
    torch._C.DispatchKey.AutogradOther,
)


@dataclass(frozen=True, eq=False)
class DerivativeRun:
    """The derivatives of one call (see `derivatives.Derivatives`)."""

    call: Attention
    out: Tensor
    lse: Tensor

    def backward(
        self, cotangents: Cotangents, wanted: Wanted, along: Direction | None
    ) -> Gradients:
        with _recording(self.call.query.device):
            if along is None:
                found = _evaluate(self.call, wanted).gradients(cotangents)
            else:
                pairs = zip(along.inputs, wanted, strict=True)
                moved = [t is not None or wants for t, wants in pairs]
                point = _evaluate(self.call, moved)
                found = point.gradient_tangents(
                    cotangents, along.cotangents, along.inputs
                )
        return tuple(
            g.detach().contiguous() if g is not None and w else None
            for g, w in zip(found, wanted, strict=True)
        )

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        with _recording(self.call.query.device):
            point = _evaluate(self.call, [t is not None for t in tangents])
            return point.tangents(tangents)


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Enable autograd and disable autocast, regardless of the surrounding modes."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    # Torch excludes autograd's dispatch keys within an operator.
    for key in AUTOGRAD:
        exclude = exclude.remove(key)
    with (
        torch._C._ForceDispatchKeyGuard(include, exclude),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _evaluate(call: Attention, differentiable: Sequence[bool]) -> RecordedPoint:
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
    return RecordedPoint(leaves, run_recorded(compiled.exact_module, args))
