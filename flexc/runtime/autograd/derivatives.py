"""Derivatives of attention: what autograd asks of a backend, and who answers.

A backend gives three linear maps, each at one point (the inputs of a call): the
gradients along cotangents of the results, the tangents of the results along tangents
of the inputs, and the tangents of the gradients, along tangents of the inputs and of
the cotangents. All that autograd needs follows from these: Hessians are symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.runtime.inputs.arguments import is_lazy
from flexc.runtime.inputs.wrappers import check_tensor
from flexc.runtime.tapes.modes import unseen

if TYPE_CHECKING:
    from flexc.frontend.captured import CapturedMods
    from flexc.runtime.attention.call import Attention


@dataclass(frozen=True, eq=False)
class Gradients:
    """A tensor for each input of a call, of that input's shape, or None.

    As gradients: of the input's dtype too, in memory of their own; None where none
    is wanted, and where nothing depends on the input. As tangents: of any strides,
    None for zero.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    captures: tuple[Tensor | None, ...]
    """Aligned with `call.signature.captures`: None for numbers and for integers."""

    @property
    def flat(self) -> tuple[Tensor | None, ...]:
        """In the order of `inputs_of`."""
        return (self.query, self.key, self.value, *self.captures)

    @classmethod
    def of(cls, flat: Sequence[Tensor | None]) -> Gradients:
        query, key, value, *captures = flat
        return cls(query, key, value, tuple(captures))


Tangents = Gradients


@dataclass(frozen=True)
class Wanted:
    """Which gradients are to be computed. The others are None."""

    query: bool
    key: bool
    value: bool
    captures: tuple[bool, ...]
    """Aligned with `call.signature.captures`. Only floats that score_mod reads."""

    @property
    def flat(self) -> tuple[bool, ...]:
        """In the order of `inputs_of`."""
        return (self.query, self.key, self.value, *self.captures)

    @classmethod
    def of(cls, flat: Sequence[bool]) -> Wanted:
        query, key, value, *captures = flat
        return cls(query, key, value, tuple(captures))

    def __bool__(self) -> bool:
        return any(self.flat)


class Derivatives(Protocol):
    """What a backend implements, as functions of a module.

    `out` and `lse` are what the call computed, lse in natural units and of
    `call.score_dtype`, beside its rest where `call.outputs` says so. `d_out` and its
    tangent are of out's shape and dtype, `d_lse` and its tangent of lse's (beside its
    rest, the first counts); all may have any strides, 0 included, and None is zero.
    Calls have pairs: neither rows nor keys are empty.

    A row with nothing to attend to (lse is -inf) is a constant: its cotangents, unless
    they are NaN, give nothing to any gradient, and its tangents are 0. Where
    `call.deterministic`, equal calls give equal bits.
    """

    def backward(
        self,
        call: Attention,
        out: Tensor,
        lse: Tensor,
        d_out: Tensor | None,
        d_lse: Tensor | None,
        wanted: Wanted,
    ) -> Gradients:
        """The gradients along cotangents."""
        ...

    def jvp(
        self, call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
    ) -> tuple[Tensor, Tensor]:
        """The tangents of out and lse, of their dtypes."""
        ...

    def backward_jvp(
        self,
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
        """The tangents of the gradients. Those of out and lse are found inside."""
        ...


OPERATORS = "operators"
"""The backend of calls that are traced, which run as operators of torch."""

KERNELS = "flexc.runtime.autograd.gradients.kernels"

IMPLEMENTATIONS = {
    "eager": "flexc.runtime.autograd.dense_derivatives",
    "cpp": KERNELS,
    "triton": KERNELS,
    OPERATORS: "flexc.runtime.torch_compile.operators.derivatives",
}
"""The module that implements `Derivatives` for a backend."""


def derivatives_of(call: Attention) -> Derivatives:
    """The derivatives of a call, by its backend."""
    backend = call.backend
    if backend != OPERATORS:
        check_gradient(call.trace())
    if backend not in IMPLEMENTATIONS:
        raise GradientError(
            f'backend "{backend}" computes the forward of attention only, so far; wrap '
            'the call in torch.no_grad(), or differentiate it with backend="eager", in '
            "memory of order Sq * Skv"
        )
    return cast(Derivatives, import_module(IMPLEMENTATIONS[backend]))


def has_kernels(backend: str) -> bool:
    """Whether gradients of a backend's calls are computed by kernels of their own."""
    return IMPLEMENTATIONS.get(backend) == KERNELS


def start(call: Attention, wanted: Wanted) -> None:
    """Start to compile the kernels of the gradients of a call.

    What is wrong with them is said when they are asked for.
    """
    if call.has_pairs and not call.trace().custom_gradient:
        import_module(KERNELS).start(call, wanted)


def check_gradient(mods: CapturedMods) -> None:
    """Refuse derivatives of code that says itself what these are."""
    if mods.custom_gradient:
        raise GradientError(
            "a score_mod applies a torch.autograd.Function, whose backward flexc does "
            "not trace: write what it computes with torch's operations, or call "
            "attention under torch.no_grad()",
            mods.score and mods.score.location,
        )


def _hidden(call: Attention) -> AbstractContextManager[Any]:
    return nullcontext() if call.backend == OPERATORS else unseen()


def backward(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The gradients of any call along cotangents."""
    refuse_batched(d_out, d_lse)
    if not call.has_pairs or (d_out is None and d_lse is None):
        return zeros(call, wanted)
    of = derivatives_of(call)
    d_out, d_lse = _readable(call, d_out, d_lse)
    with _hidden(call):
        return of.backward(call, out, lse, d_out, d_lse, wanted)


def jvp(
    call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
) -> tuple[Tensor, Tensor]:
    """The tangents of any call's out and lse along tangents of its inputs."""
    if not call.has_pairs or is_zero(tangents):
        return torch.zeros_like(out), torch.zeros_like(lse)
    of = derivatives_of(call)
    tangents = Gradients.of(_readable(call, *tangents.flat))
    with _hidden(call):
        return of.jvp(call, out, lse, tangents)


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
    """The tangents of any call's gradients, along tangents of all that they are of."""
    if not call.has_pairs:
        return zeros(call, wanted)
    if is_zero(tangents) or (d_out is None and d_lse is None):
        return backward(call, out, lse, t_d_out, t_d_lse, wanted)
    of = derivatives_of(call)
    cotangents = _readable(call, d_out, d_lse, t_d_out, t_d_lse)
    d_out, d_lse, t_d_out, t_d_lse = cotangents
    tangents = Gradients.of(_readable(call, *tangents.flat))
    with _hidden(call):
        return of.backward_jvp(
            call, out, lse, d_out, d_lse, tangents, t_d_out, t_d_lse, wanted
        )


def _readable(call: Attention, *tensors: Tensor | None) -> list[Tensor | None]:
    """Cotangents or tangents of autograd's making, with their elements in memory."""
    if call.backend == OPERATORS:
        return list(tensors)
    return [None if t is None else _in_memory(t) for t in tensors]


def _in_memory(tensor: Tensor) -> Tensor:
    check_tensor("a cotangent or a tangent", tensor, GradientError)
    if not is_lazy(tensor):
        return tensor
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return torch.empty_like(tensor).copy_(tensor)


def refuse_batched(*tensors: Tensor | None) -> None:
    """Refuse the batches of torch's older vmap, which no Function is asked about."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    is_batched = getattr(functorch, "is_legacy_batchedtensor", lambda _: False)
    if any(t is not None and is_batched(t) for t in tensors):
        raise GradientError(
            "gradients of attention expect one cotangent at a time, got a batch of "
            "them (is_grads_batched=True or vectorize=True); use torch.func.vmap, "
            "torch.func.jacrev or torch.func.hessian"
        )


def inputs_of(call: Attention) -> tuple[Tensor | int | float, ...]:
    """Query, key, value and captures."""
    return (call.query, call.key, call.value, *call.signature.captures)


def zeros(call: Attention, wanted: Wanted) -> Gradients:
    """Gradients of what does not depend on anything."""
    pairs = zip(inputs_of(call), wanted.flat, strict=True)
    return Gradients.of(
        [
            torch.zeros_like(value) if wants and isinstance(value, Tensor) else None
            for value, wants in pairs
        ]
    )


def is_zero(tangents: Tangents) -> bool:
    """Whether every tangent is None."""
    return all(t is None for t in tangents.flat)
