"""Derivatives of the backend "eager": torch's own, of dense attention.

Forward mode is reverse mode twice: a gradient is linear in its cotangents, and the
gradient of that, along tangents, with respect to them is the Jacobian's product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flexc.runtime.call import Attention, Outputs
from flexc.runtime.derivatives import Gradients, Tangents, Wanted, inputs_of
from flexc.runtime.interpreters.gradients import run_recorded


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
        cotangents = [torch.zeros_like(t, requires_grad=True) for t in (out, lse)]
        along = _along(tangents, point.gradients(cotangents, create_graph=True))
        t_out, t_lse = _gradients([along], cotangents, [None])
    return t_out, t_lse


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
    """The tangents of the gradients: Hessians are symmetric, gradients are linear."""
    present = _present(tangents)
    either = [a or b for a, b in zip(present, wanted.flat, strict=True)]
    with _recording(call.query.device):
        point = _evaluate(call, either)
        gradients = point.gradients([d_out, d_lse], create_graph=True)
        along = _along(tangents, gradients)
        leaves = [leaf for leaf in point.leaves if leaf is not None]
        bent = iter(_gradients([along], leaves, [None]))
        straight = point.gradients([t_d_out, t_d_lse])
        sums = [None if g is None else g + next(bent) for g in straight]
    return _wanted(sums, wanted)


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Autograd, whatever the modes around; products as the call's dtypes say."""
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


@dataclass(frozen=True, eq=False)
class _Point:
    """Dense attention at the inputs of a call, recorded."""

    leaves: list[Tensor | None]
    """Aligned with the call's inputs, None where there is no derivative."""
    results: tuple[Tensor, Tensor]

    def gradients(
        self, cotangents: Sequence[Tensor | None], create_graph: bool = False
    ) -> list[Tensor | None]:
        """Aligned with the leaves."""
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        found = iter(_gradients(self.results, leaves, cotangents, create_graph))
        return [None if leaf is None else next(found) for leaf in self.leaves]


def _evaluate(call: Attention, differentiable: Sequence[bool]) -> _Point:
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
    return _Point(leaves, run_recorded(compiled.exact_module, args))


def _gradients(
    results: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    create_graph: bool = False,
) -> list[Tensor]:
    """Gradients of the results; zeros where nothing depends on a leaf."""
    used = [
        (r, c)
        for r, c in zip(results, cotangents, strict=True)
        if r.requires_grad and (c is not None or r.dim() == 0)
    ]
    if not used or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(
        [r for r, _ in used],
        leaves,
        [c for _, c in used],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]


def _along(tangents: Tangents, gradients: Sequence[Tensor | None]) -> Tensor:
    """The sum of products of gradients with the tangents of what they are of."""
    products = [
        (g * t).sum(dtype=torch.float64)
        for g, t in zip(gradients, tangents.flat, strict=True)
        if g is not None and t is not None
    ]
    return torch.stack(products).sum()


def _present(tangents: Tangents) -> tuple[bool, ...]:
    return tuple(t is not None for t in tangents.flat)


def _wanted(gradients: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
    pairs = zip(gradients, wanted.flat, strict=True)
    return Gradients.of(
        [g.detach().contiguous() if g is not None and w else None for g, w in pairs]
    )
