"""The autograd Functions (attention, its gradients, their tangents), and calls of them.

Each Function takes a call's template and tensors. The Functions of derivatives also
take out and lse, after the tensors. Two Functions for forward mode are enough for
second order, because the gradients of the backward are tangents:

- Its derivative by the cotangents is the forward's tangent.
- Its derivative by the inputs is the backward's tangent: a Hessian is symmetric.
- The derivatives of the forward's tangent are gradients and tangents of gradients too.

Out and lse are functions of the inputs. As inputs of other Functions they have no
derivative of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from flexc.errors import GradientError
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.derivatives import (
    Direction,
    Gradients,
    Wanted,
    check_gradient,
    spread,
)
from flexc.runtime.autograd.template import INPUTS, Kind, Results, Template, split
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.tapes.recorder import without_dispatch_modes

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


def _fold(
    function: Callable[..., Any],
    size: int,
    in_dims: Sequence[int | None],
    kinds: Sequence[Kind],
    args: Sequence[Any],
) -> tuple[Any, ...]:
    folded = [
        _merged(arg, dim, size)
        if isinstance(arg, Tensor) and kind in ("row", "table")
        else arg
        for arg, dim, kind in zip(args, in_dims, kinds, strict=True)
    ]
    results = function(*folded)
    return tuple(
        r.unflatten(0, (size, -1)) if isinstance(r, Tensor) else r for r in results
    )


def _with_a_slice(arg: Any, dim: int | None) -> Any:
    """Return an argument with a slice of zeros added along its mapped dimension."""
    if dim is None:
        return arg
    return F.pad(arg, (*(0,) * (2 * (arg.dim() - dim - 1)), 0, 1))


def _merged(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return the tensor with the mapped dimension merged into the batch, outermost."""
    if dim is None:
        tensor = tensor.expand(size, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _loop(
    function: Callable[..., Any],
    size: int,
    in_dims: Sequence[int | None],
    args: Sequence[Any],
) -> tuple[Any, ...]:
    slices = [
        function(
            *(
                arg if dim is None else arg.select(dim, i)
                for arg, dim in zip(args, in_dims, strict=True)
            )
        )
        for i in range(size)
    ]
    return tuple(
        torch.stack(parts) if isinstance(parts[0], Tensor) else None
        for parts in zip(*slices, strict=True)
    )


Maybe = Tensor | None


class _Function(torch.autograd.Function):
    """A Function of a call's template and tensors."""

    layout: tuple[str, ...]
    """The kind of each argument. "tensors" stands for the tensors of a call."""

    def __init_subclass__(cls) -> None:
        """Cache the signature of the forward, and hide the backward from Dynamo.

        Torch would inspect the signature at every call. Dynamo traces the backward for
        compiled autograd and would miss the launches of a tape.
        """
        cls.forward.__signature__ = inspect.signature(cls.forward)  # pyright: ignore
        backward: Any = cls.backward
        # `torch.compiler.disable` would import Dynamo.
        hidden = _disable_dynamo(backward)

        @wraps(backward)
        def shown(ctx: Any, *grads: Maybe) -> Any:
            run = hidden if torch.compiler.is_dynamo_compiling() else backward
            return run(ctx, *grads)

        cls.backward = staticmethod(shown)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *args: Any) -> Any:  # pyright: ignore
        """Return the results for a batch of arguments, and their mapped dimensions."""
        template: Template = args[0]
        kinds: list[Any] = []
        for kind in cls.layout:
            kinds += template.kinds if kind == "tensors" else [kind]
        # Static arguments are not mapped, even if torch maps elements of their tuples.
        pairs = list(zip(kinds, in_dims, strict=True))
        dims = [None if kind == "static" else dim for kind, dim in pairs]
        # A larger batch has the results of its parts if they share captures and tables.
        size = info.batch_size
        if not size:  # A slice of zeros gives the shapes of results.
            args = tuple(map(_with_a_slice, args, dims))
        wanted = args[1] if cls.layout[1] == "static" else ()
        shares = all(kind in ("static", "row") or dim is None for kind, dim in pairs)
        if shares and not (
            template.reads.batch or any(wanted[INPUTS:]) or "whole" in kinds
        ):
            results = _fold(cls.apply, size or 1, dims, kinds, args)
        else:
            results = _loop(cls.apply, size or 1, dims, args)
        places = tuple(0 if isinstance(r, Tensor) else None for r in results)
        if not size:
            results = tuple(r[:0] if isinstance(r, Tensor) else r for r in results)
        return results, places


class FlexAttentionFunction(_Function):
    """The Function from (template, *tensors) to out, lse and max_scores."""

    layout = ("static", "tensors")

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


class FlexAttentionBackwardFunction(_Function):
    """The Function from a call and cotangents to the wanted gradients.

    The arguments are (template, wanted, d_out, d_lse, *tensors, out, lse).
    """

    layout = (*("static",) * 2, *("row",) * 2, "tensors", *("row",) * 2)

    @staticmethod
    def forward(template: Template, wanted: Wanted, *args: Any) -> Any:
        def run() -> tuple[Maybe, ...]:
            d_out, d_lse, *tensors, out, lse = args
            call = template.bind(tensors)
            found = derivatives.backward(call, out, lse, (d_out, d_lse), wanted)
            return _packed(found, wanted)

        return template.repeat(("gradients", wanted), args, run)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.template, ctx.wanted, *tensors = inputs
        _save(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        template: Template = ctx.template
        d_out, d_lse, *saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        along = template.spread(spread(grads, ctx.wanted), None)
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


class FlexAttentionJvpFunction(_Function):
    """The Function from tangents of a call's inputs to the tangents of out and lse.

    The arguments are (template, *tangents, *tensors, out, lse).
    """

    layout = ("static", *("tensors",) * 2, *("row",) * 2)

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


class FlexAttentionBackwardJvpFunction(_Function):
    """The Function to the tangents of the gradients, which have no derivatives.

    The arguments are (template, wanted, d_out, d_lse, t_d_out, t_d_lse, *tangents,
    *tensors, out, lse).
    """

    layout = (*("static",) * 2, *("row",) * 4, *("tensors",) * 2, *("row",) * 2)

    @staticmethod
    def forward(template: Template, wanted: Wanted, *args: Any) -> Any:
        d_out, d_lse, t_d_out, t_d_lse, *args = args  # pyright: ignore
        along, tensors, out, lse = _halves(args)
        direction = Direction(template.along(along), (t_d_out, t_d_lse))
        call = template.bind(tensors)
        found = derivatives.backward(call, out, lse, (d_out, d_lse), wanted, direction)
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


def _third() -> GradientError:
    return GradientError(
        "flexc computes derivatives of attention up to the second order, a third was "
        "asked for; detach() what needs none, leave out create_graph=True where the "
        "second is computed, or, in place of torch.autograd.functional.hvp, take vhp "
        "or torch.func.jvp of torch.func.grad"
    )


def _save(ctx: Any, tensors: Sequence[Maybe]) -> None:
    """Save tensors for derivatives in reverse and in forward mode.

    Autograd cannot save a tensor made in inference mode, so a copy is saved.
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
    """Return the gradients of a call's tensors, None where none is needed."""
    wanted = template.wanted(needs)
    if not any(wanted) or all(c is None for c in cotangents):
        return [None] * len(needs)
    function = FlexAttentionBackwardFunction
    apply = function.apply if is_recorded() else function.forward
    found: Any = apply(template, wanted, *cotangents, *saved)
    return template.spread(spread(found, wanted), None)


def is_recorded() -> bool:
    """Return True if derivatives must run as Functions, to be differentiated."""
    return torch.is_grad_enabled() or is_transformed()


def _tangents(
    template: Template, along: Sequence[Maybe], saved: Sequence[Any]
) -> tuple[Maybe, Maybe]:
    """Return the tangents of out and lse along tangents of a call's tensors."""
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
    """Return the tangents of the gradients, the second derivatives."""
    wanted = template.wanted(needs)
    is_zero = derivatives.is_zero(template.along(along))
    if not any(wanted) or is_zero or all(c is None for c in cotangents):
        return [None] * len(needs)
    apply = FlexAttentionBackwardJvpFunction.apply
    found: Any = apply(template, wanted, *cotangents, None, None, *along, *saved)
    return template.spread(spread(found, wanted), None)


def _packed(found: Gradients, wanted: Wanted) -> tuple[Maybe, ...]:
    """Return only the gradients that are wanted."""
    return tuple(g for g, w in zip(found, wanted, strict=True) if w)


def _halves(args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any, Any]:
    """Split arguments into tangents, tensors, out and lse."""
    count = len(args) // 2 - 1
    return args[:count], args[count:-2], args[-2], args[-1]


def run_attention(call: Attention) -> Results:
    """Run a call. Autograd records it if an input requires a gradient."""
    call = call.with_traced()
    if is_differentiated(call):
        check_gradient(call.trace())
    elif not is_transformed():
        return derivatives.run(call)
    return run_template(*split(resolve_tables(call)))


def resolve_tables(call: Attention) -> Attention:
    """Return the call with its tables of blocks, also those of its derivatives.

    Within transforms, the call is returned unchanged. Its tables are found later, for
    the tensors within the wrappers.
    """
    if is_transformed() or not call.has_pairs:
        return call
    with without_dispatch_modes(), torch.no_grad():
        return call.resolve_tables(both=True)


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
