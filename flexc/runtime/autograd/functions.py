"""The autograd Functions: attention, its gradients, and their tangents.

Each takes a call's template and its tensors; those of derivatives take out and lse
after these. The gradients of the backward are tangents of the forward and of the
backward itself, so two Functions for forward mode are all that second order takes:

- the backward's derivative in its cotangents is the forward's tangent along it,
- its derivative in the inputs is the backward's tangent along it: a Hessian, which
  is symmetric,
- and so are the derivatives of the forward's tangent, the other way round.

Out and lse are functions of the inputs wherever they are passed on: as inputs of the
other Functions they have no derivative of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from flexc.errors import GradientError
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.batching import map_slices
from flexc.runtime.autograd.derivatives import Gradients, Wanted
from flexc.runtime.autograd.template import Template
from flexc.runtime.inputs.transforms import is_transformed

Maybe = Tensor | None


def _signed(function: Any) -> Any:
    """Keep what torch would find out at every call: the arguments of forward.

    And hide its backward from Dynamo, which traces it for compiled autograd: it would
    take a tape's launches for nothing.
    """
    function.forward.__signature__ = inspect.signature(function.forward)
    backward = function.backward
    # `torch.compiler.disable` would import Dynamo.
    hidden = _disable_dynamo(backward)

    @wraps(backward)
    def shown(ctx: Any, *grads: Maybe) -> Any:
        run = hidden if torch.compiler.is_dynamo_compiling() else backward
        return run(ctx, *grads)

    function.backward = staticmethod(shown)
    return function


@_signed
class FlexAttentionFunction(torch.autograd.Function):
    """(template, *tensors) to out, lse and max_scores."""

    @staticmethod
    def forward(template: Template, *tensors: Tensor) -> Any:
        return template.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        out, lse, max_scores = output
        ctx.template = inputs[0]
        if max_scores is not None:
            ctx.mark_non_differentiable(max_scores)
        _save(ctx, (*inputs[1:], out, lse))

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        template: Template = ctx.template
        needs, cotangents, saved = ctx.needs_input_grad, grads[:2], ctx.saved_tensors

        def run() -> Any:
            return None, *gradients_of_tensors(template, needs[1:], cotangents, saved)

        if is_recorded():
            return run()
        return template.repeat(needs, (*cotangents, *saved), run)

    @staticmethod
    def jvp(ctx: Any, *tangents: Maybe) -> Any:
        return *_tangents(ctx.template, tangents[1:], ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        template: Template = args[0]
        kinds = ("static", *template.kinds)
        function = FlexAttentionFunction.apply
        return map_slices(
            function, info, in_dims, kinds, args, not template.reads.batch
        )


@_signed
class FlexAttentionBackwardFunction(torch.autograd.Function):
    """(template, wanted, d_out, d_lse, *tensors, out, lse) to the wanted gradients."""

    @staticmethod
    def forward(template: Template, wanted: Wanted, *args: Any) -> Any:
        def run() -> tuple[Maybe, ...]:
            d_out, d_lse, *tensors, out, lse = args
            call = template.bind(tensors)
            found = derivatives.backward(call, out, lse, d_out, d_lse, wanted)
            return _packed(found, wanted)

        return template.repeat(wanted, args, run)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.template, ctx.wanted, *tensors = inputs
        _save(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        template: Template = ctx.template
        d_out, d_lse, *saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        along = template.spread(_unpacked(grads, ctx.wanted), None)
        first: list[Maybe] = [None, None]
        if any(needs[:2]):
            pairs = zip(_tangents(template, along, saved), needs[:2], strict=True)
            first = [t if need else None for t, need in pairs]
        second = _bent(template, needs[2:-2], (d_out, d_lse), along, saved)
        return None, None, *first, *second, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Maybe) -> Any:
        t_d_out, t_d_lse, *along = tangents[2:-2]
        d_out, d_lse, *saved = ctx.saved_tensors
        return FlexAttentionBackwardJvpFunction.apply(
            ctx.template, ctx.wanted, d_out, d_lse, t_d_out, t_d_lse, *along, *saved
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        template: Template = args[0]
        rows = ("row", "row")
        kinds = ("static", "static", *rows, *template.kinds, *rows)
        folds = not template.reads.batch and not any(args[1].captures)
        function = FlexAttentionBackwardFunction.apply
        return map_slices(function, info, in_dims, kinds, args, folds)


@_signed
class FlexAttentionJvpFunction(torch.autograd.Function):
    """(template, *tangents, *tensors, out, lse) to the tangents of out and lse."""

    @staticmethod
    def forward(template: Template, *args: Any) -> Any:
        along, tensors, out, lse = _halves(args)
        tangents = template.along(along)
        return derivatives.jvp(template.bind(tensors), out, lse, tangents)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.template, *tensors = inputs
        _save(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        along, tensors, out, lse = _halves(ctx.saved_tensors)
        needs, needs_bent, *_ = _halves(ctx.needs_input_grad[1:])
        saved = (*tensors, out, lse)
        straight = gradients_of_tensors(ctx.template, needs, grads, saved)
        bent = _bent(ctx.template, needs_bent, grads, along, saved)
        return None, *straight, *bent, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Maybe) -> Any:
        along, bent, *_ = _halves(tangents[1:])
        if any(t is not None for t in bent):
            raise GradientError(
                "flexc computes no forward mode over forward mode, such as "
                "jvp(jvp(f)) or jacfwd(jacfwd(f)); take one of them in reverse: "
                "torch.func.hessian(f), jacrev(jacfwd(f)) or jvp(grad(f))"
            )
        _, tensors, out, lse = _halves(ctx.saved_tensors)
        return _tangents(ctx.template, along, (*tensors, out, lse))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        template: Template = args[0]
        kinds = ("static", *template.kinds, *template.kinds, "row", "row")
        function = FlexAttentionJvpFunction.apply
        return map_slices(
            function, info, in_dims, kinds, args, not template.reads.batch
        )


@_signed
class FlexAttentionBackwardJvpFunction(torch.autograd.Function):
    """The tangents of the gradients, the last that there is.

    (template, wanted, d_out, d_lse, t_d_out, t_d_lse, *tangents, *tensors, out, lse).
    """

    @staticmethod
    def forward(template: Template, wanted: Wanted, *args: Any) -> Any:
        d_out, d_lse, t_d_out, t_d_lse, *args = args  # pyright: ignore
        along, tensors, out, lse = _halves(args)
        found = derivatives.backward_jvp(
            template.bind(tensors),
            out,
            lse,
            d_out,
            d_lse,
            template.along(along),
            t_d_out,
            t_d_lse,
            wanted,
        )
        return _packed(found, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> NoReturn:
        raise _third()

    @staticmethod
    def jvp(ctx: Any, *tangents: Maybe) -> NoReturn:
        raise _third()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        template: Template = args[0]
        rows = ("row",) * 4
        pairs = (*template.kinds, *template.kinds)
        kinds = ("static", "static", *rows, *pairs, "row", "row")
        folds = not template.reads.batch and not any(args[1].captures)
        function = FlexAttentionBackwardJvpFunction.apply
        return map_slices(function, info, in_dims, kinds, args, folds)


def _third() -> GradientError:
    return GradientError(
        "flexc computes derivatives of attention up to the second order, a third was "
        "asked for; detach() what needs none, leave out create_graph=True where the "
        "second is computed, or, in place of torch.autograd.functional.hvp, take vhp "
        "or torch.func.jvp of torch.func.grad"
    )


def _save(ctx: Any, tensors: Sequence[Maybe]) -> None:
    """Save tensors for what will differentiate, in either mode.

    Autograd saves no tensor that was made in inference mode, but a copy of one.
    """
    ctx.set_materialize_grads(False)
    for tensor in tensors:
        if tensor is not None and tensor.is_inference():
            tensors = [
                t.clone() if t is not None and t.is_inference() else t for t in tensors
            ]
            break
    ctx.save_for_backward(*tensors)
    if is_transformed() or forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def gradients_of_tensors(
    template: Template,
    needs: Sequence[bool],
    cotangents: Sequence[Maybe],
    saved: Sequence[Any],
) -> list[Maybe]:
    """Gradients of a call's tensors; None where none is needed."""
    wanted = template.wanted(needs)
    if not wanted or all(c is None for c in cotangents):
        return [None] * len(needs)
    function = FlexAttentionBackwardFunction
    apply = function.apply if is_recorded() else function.forward
    found: Any = apply(template, wanted, *cotangents, *saved)
    return template.spread(_unpacked(found, wanted), None)


def is_recorded() -> bool:
    """Whether derivatives need a Function, which somebody may differentiate."""
    return torch.is_grad_enabled() or is_transformed()


def _tangents(
    template: Template, along: Sequence[Maybe], saved: Sequence[Any]
) -> tuple[Maybe, Maybe]:
    """Tangents of out and lse along those of a call's tensors."""
    if derivatives.is_zero(template.along(along)):
        return None, None
    found: Any = FlexAttentionJvpFunction.apply(template, *along, *saved)
    return found


def _bent(
    template: Template,
    needs: Sequence[bool],
    cotangents: Sequence[Maybe],
    along: Sequence[Maybe],
    saved: Sequence[Any],
) -> list[Maybe]:
    """Second derivatives: tangents of the gradients for fixed cotangents."""
    wanted = template.wanted(needs)
    is_zero = derivatives.is_zero(template.along(along))
    if not wanted or is_zero or all(c is None for c in cotangents):
        return [None] * len(needs)
    apply = FlexAttentionBackwardJvpFunction.apply
    found: Any = apply(template, wanted, *cotangents, None, None, *along, *saved)
    return template.spread(_unpacked(found, wanted), None)


def _packed(found: Gradients, wanted: Wanted) -> tuple[Maybe, ...]:
    """The gradients that are wanted, without the others' places."""
    return tuple(g for g, w in zip(found.flat, wanted.flat, strict=True) if w)


def _unpacked(found: Sequence[Maybe], wanted: Wanted) -> list[Maybe]:
    """Gradients in the places of a call's inputs."""
    remaining = iter(found)
    return [next(remaining) if w else None for w in wanted.flat]


def _halves(args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any, Any]:
    """What belongs to tangents, to tensors, to out and to lse."""
    count = len(args) // 2 - 1
    return args[:count], args[count:-2], args[-2], args[-1]
