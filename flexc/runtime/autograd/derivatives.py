"""Derivatives of attention: the interface that autograd needs from a backend.

A backend gives three linear maps, each at one point (the inputs of a call):

- the gradients along cotangents of the results,
- the tangents of the results along tangents of the inputs,
- the tangents of the gradients, along tangents of the inputs and of the cotangents.

All derivatives up to the second order follow from these, because Hessians are
symmetric.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.runtime.inputs.arguments import Results, is_lazy
from flexc.runtime.inputs.wrappers import check_tensor
from flexc.runtime.tapes.recorder import without_dispatch_modes

if TYPE_CHECKING:
    from flexc.frontend.captured import CapturedMods
    from flexc.runtime.attention.call import Attention


Gradients = tuple[Tensor | None, ...]
"""The gradient for each of `inputs_of` a call, of its shape and dtype and in memory of
its own. None if the gradient is not wanted, or if the input is a captured number or
integer tensor.
"""

Tangents = tuple[Tensor | None, ...]
"""The tangent for each of `inputs_of` a call, of any strides. None means zero."""

Wanted = tuple[bool, ...]
"""A flag for each of `inputs_of` a call: True if its gradient is to be computed. Of the
captures, only float tensors that score_mod reads may have True.
"""

Cotangents = tuple[Tensor | None, Tensor | None]
"""Cotangents of out and lse, or tangents of the cotangents. None means zero."""


class Direction(NamedTuple):
    """The direction in which gradients are differentiated."""

    inputs: Tangents
    cotangents: Cotangents
    """The tangents of the cotangents. The tangents of out and lse follow from the
    inputs.
    """


class Derivatives(Protocol):
    """The derivatives of one call at one point, which a backend's module implements.

    `out` and `lse` are results of the call. lse is in natural units and of
    `call.score_dtype`; if `call.outputs` asks for its rest, the rest follows it. The
    cotangent of out and its tangent have out's shape and dtype. The cotangent of lse
    and its tangent have lse's shape and dtype; if lse has a rest, entries for the rest
    are ignored. All of these may have any strides, 0 included. A call has pairs:
    neither its rows nor its keys are empty.

    A row without live keys (lse is -inf) is a constant. Its cotangents add nothing to
    any gradient unless they are NaN, and its tangents are 0. With `call.deterministic`,
    equal calls give equal bits.
    """

    def __init__(self, call: Attention, out: Tensor, lse: Tensor) -> None: ...

    def backward(
        self, cotangents: Cotangents, wanted: Wanted, along: Direction | None
    ) -> Gradients:
        """Return the gradients along cotangents, or their tangents for `along`."""
        ...

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        """Return the tangents of out and lse, of their dtypes."""
        ...


OPERATORS = "operators"
"""The backend of traced calls, which run as operators of torch."""

FORWARD = "flexc.runtime.attention.run"

KERNELS = "flexc.runtime.autograd.gradient_kernels"

IMPLEMENTATIONS = {
    "eager": "flexc.runtime.autograd.dense_derivatives",
    "cpp": KERNELS,
    "triton": KERNELS,
    OPERATORS: "flexc.runtime.torch_compile.operators.traced",
}
"""The module whose class `DerivativeRun` implements `Derivatives` for a backend."""


def run(call: Attention) -> Results:
    """Return the results of a call that autograd does not record."""
    if call.backend == OPERATORS:
        return import_module(IMPLEMENTATIONS[OPERATORS]).run(call)
    return import_module(FORWARD).run(call)


def derivatives_of(call: Attention) -> type[Derivatives]:
    """Return the class that computes the derivatives of a call.

    Raise GradientError if the call cannot be differentiated.
    """
    backend = call.backend
    if call.is_narrow:
        raise GradientError(
            f"gradients expect key and value of the query's dtype, {call.query.dtype}, "
            f"got {call.key.dtype} and {call.value.dtype}: cast them, or call within "
            "torch.no_grad()"
        )
    if backend != OPERATORS:
        check_gradient(call.trace())
    if backend not in IMPLEMENTATIONS:
        raise GradientError(
            f'backend "{backend}" computes the forward of attention only, so far; wrap '
            'the call in torch.no_grad(), or differentiate it with backend="eager", in '
            "memory of order Sq * Skv"
        )
    return import_module(IMPLEMENTATIONS[backend]).DerivativeRun


def has_kernels(backend: str) -> bool:
    """Return True if kernels compute the gradients of a backend's calls."""
    return IMPLEMENTATIONS.get(backend) == KERNELS


def start(call: Attention, wanted: Wanted) -> None:
    """Start to compile the kernels of a call and of its gradients, in parallel."""
    import_module(FORWARD).start(call)
    # A call that cannot be differentiated can still run. Its gradients raise the error.
    with suppress(Exception):
        if call.has_pairs and not call.trace().custom_gradient:
            import_module(KERNELS).start(call, wanted)


def check_gradient(mods: CapturedMods) -> None:
    """Raise GradientError for mods that define their own derivatives."""
    if mods.custom_gradient:
        raise GradientError(
            "a score_mod applies a torch.autograd.Function, whose backward flexc does "
            "not trace: write what it computes with torch's operations, or call "
            "attention under torch.no_grad()",
            mods.score and mods.score.location,
        )


def _hidden(call: Attention) -> AbstractContextManager[Any]:
    return nullcontext() if call.backend == OPERATORS else without_dispatch_modes()


def backward(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    cotangents: Cotangents,
    wanted: Wanted,
    along: Direction | None = None,
) -> Gradients:
    """Return the gradients of any call along cotangents.

    With `along`, return the tangents of these gradients in that direction.
    """
    if along is not None and (is_zero(along.inputs) or is_zero(cotangents)):
        # The gradients are linear in their cotangents.
        cotangents, along = along.cotangents, None
    if along is None:
        refuse_batched(*cotangents)
    if not call.has_pairs or (along is None and is_zero(cotangents)):
        return zeros(call, wanted)
    of = derivatives_of(call)
    cotangents = _readable(call, cotangents)
    if along is not None:
        along = Direction(*(_readable(call, tangents) for tangents in along))
    with _hidden(call):
        return of(call, out, lse).backward(cotangents, wanted, along)


def jvp(
    call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
) -> tuple[Tensor, Tensor]:
    """Return the tangents of out and lse along tangents of the inputs."""
    if not call.has_pairs or is_zero(tangents):
        return torch.zeros_like(out), torch.zeros_like(lse)
    of = derivatives_of(call)
    with _hidden(call):
        return of(call, out, lse).jvp(_readable(call, tangents))


def _readable(call: Attention, tensors: Sequence[Tensor | None]) -> Any:
    """Return cotangents or tangents with their elements in memory."""
    if call.backend == OPERATORS:
        return tensors
    return tuple(None if t is None else _in_memory(t) for t in tensors)


def _in_memory(tensor: Tensor) -> Tensor:
    check_tensor("a cotangent or a tangent", tensor, GradientError)
    if not is_lazy(tensor):
        return tensor
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return torch.empty_like(tensor).copy_(tensor)


def refuse_batched(*tensors: Tensor | None) -> None:
    """Refuse the batches of torch's older vmap, which bypasses the Functions' vmap."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    is_batched = getattr(functorch, "is_legacy_batchedtensor", lambda _: False)
    if any(t is not None and is_batched(t) for t in tensors):
        raise GradientError(
            "gradients of attention expect one cotangent at a time, got a batch of "
            "them (is_grads_batched=True or vectorize=True); use torch.func.vmap, "
            "torch.func.jacrev or torch.func.hessian"
        )


def inputs_of(call: Attention) -> tuple[Tensor | int | float, ...]:
    """Return query, key, value and captures."""
    return (call.query, call.key, call.value, *call.signature.captures)


def zeros(call: Attention, wanted: Wanted) -> Gradients:
    """Return gradients of zero for the inputs that are wanted."""
    return tuple(
        torch.zeros_like(value) if wants and isinstance(value, Tensor) else None
        for value, wants in zip(inputs_of(call), wanted, strict=True)
    )


def spread(found: Iterable[Tensor | None], given: Sequence[bool]) -> Gradients:
    """Return a tuple of the found values where `given` is True, None elsewhere."""
    remaining = iter(found)
    return tuple(next(remaining) if g else None for g in given)


def is_zero(tangents: Sequence[Tensor | None]) -> bool:
    return all(t is None for t in tangents)
