"""The operators of torch.library: attention, its gradients, and their tangents.

Each takes a call's arguments as `TracedAttention.arguments` has them. Lists of bools
say, for query, key, value and each capture, whether a list of tensors has one for it.
A gradient lies in memory as `torch.empty_like` of its input does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.frontend.closures import read_mods
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.derivatives import (
    Gradients,
    Wanted,
    inputs_of,
)
from flexc.runtime.autograd.functions import gradients_of_tensors
from flexc.runtime.autograd.template import split
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.torch_compile.operators.derivatives import gradients
from flexc.runtime.torch_compile.operators.planning import plan, plan_fake
from flexc.runtime.torch_compile.operators.tapes import (
    ARGUMENTS,
    Operators,
    repeated,
)
from flexc.runtime.torch_compile.operators.traced import (
    Arguments,
    TracedAttention,
    bind,
    captures_of,
    lookup,
)

LIBRARY = Operators("flexc", "FRAGMENT")

CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor[] captures, Tensor[] tables, "
    "SymInt[] sizes, float? scale, str handle"
)
POINT = f"{CALL}, Tensor out, Tensor lse"
COTANGENTS = "Tensor? d_out, Tensor? d_lse"
TANGENTS = "Tensor[] tangents, bool[] given"

Pair = tuple[Tensor, Tensor]


def attention(*arguments: Any) -> list[Tensor]:
    """Out, and of lse and max_scores those that the handle asks for."""

    def run(call: Attention) -> list[Tensor]:
        return [r for r in call.run() if r is not None]

    return repeated("attention", arguments, run)


def attention_fake(*arguments: Any) -> list[Tensor]:
    query, key, value, *_, handle = arguments
    made = allocate(query, key, value, lookup(handle).outputs)
    return [r for r in made if r is not None]


def attention_backward(*args: Any) -> list[Tensor]:
    """The wanted gradients."""
    out, lse, d_out, d_lse, wanted = args[ARGUMENTS:]
    wants = Wanted.of(wanted)

    def run(call: Attention) -> list[Tensor]:
        found = derivatives.backward(call, out, lse, d_out, d_lse, wants)
        return _laid_out(found, call)

    return repeated("attention_backward", args, run)


def attention_jvp(*args: Any) -> Pair:
    """The tangents of out and lse."""
    call, (out, lse, tangents, given) = _bound(args)
    found = derivatives.jvp(call, out, lse, gradients(tangents, given))
    return _like(found[0], out), _like(found[1], lse)


def attention_jvp_fake(*args: Any) -> Pair:
    out, lse, *_ = args[ARGUMENTS:]
    return torch.empty_like(out), torch.empty_like(lse)


def attention_backward_jvp(*args: Any) -> list[Tensor]:
    """The tangents of the wanted gradients."""
    call, (out, lse, *cotangents, tangents, given, wanted) = _bound(args)
    d_out, d_lse, t_d_out, t_d_lse = cotangents
    found = derivatives.backward_jvp(
        call,
        out,
        lse,
        d_out,
        d_lse,
        gradients(tangents, given),
        t_d_out,
        t_d_lse,
        Wanted.of(wanted),
    )
    return _laid_out(found, call)


def gradients_fake(*args: Any) -> list[Tensor]:
    """Like the inputs whose gradients are wanted."""
    arguments, wanted = args[:ARGUMENTS], args[-1]
    query, key, value, *_ = arguments
    pairs = zip((query, key, value, *captures_of(arguments)), wanted, strict=True)
    return [torch.empty_like(t) for t, wants in pairs if wants]


def allocate(query: Tensor, key: Tensor, value: Tensor, outputs: Outputs) -> Any:
    """Results as attention makes them, of what has no data too."""
    nothing = read_mods(None, None)
    return Attention(
        query, key, value, 1.0, None, nothing, outputs, "", NO_OPTIONS
    ).allocate()


def _bound(args: Sequence[Any]) -> tuple[Attention, Sequence[Any]]:
    return bind(args[:ARGUMENTS]), args[ARGUMENTS:]


def _laid_out(found: Gradients, call: Attention) -> list[Tensor]:
    pairs = zip(found.flat, inputs_of(call), strict=True)
    return [
        _like(gradient, value)
        for gradient, value in pairs
        if gradient is not None and isinstance(value, Tensor)
    ]


def _like(found: Tensor, value: Tensor) -> Tensor:
    """What was found, in memory of its own, as `empty_like` lays it out."""
    expected = torch.empty_like(value, device="meta").stride()
    if found.stride() == expected:
        return found
    return torch.empty_like(value).copy_(found)


def _setup_context(ctx: Any, inputs: Arguments, output: list[Tensor]) -> None:
    query, key, value, captures, tables, *rest = inputs
    outputs = lookup(inputs[-1]).outputs
    ctx.rest = rest
    ctx.counts = (len(captures), len(tables))
    ctx.set_materialize_grads(False)
    if outputs.max_scores:
        ctx.mark_non_differentiable(output[-1])
    point = output[: 1 + outputs.lse]
    ctx.save_for_backward(query, key, value, *captures, *tables, *point)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> Any:
    """By the Functions that eager calls have: of traced calls, they are operators."""
    if not lookup(ctx.rest[-1]).outputs.lse:
        raise GradientError(
            "flexc::attention expects to compute lse where gradients are asked for; "
            "call flexc.flex_attention, which sees to it"
        )
    saved, (count, tables) = ctx.saved_tensors, ctx.counts
    query, key, value, *others = saved[:-2]
    captures, tabled = others[:count], others[count:]
    call = TracedAttention.bind((query, key, value, captures, tabled, *ctx.rest))
    template, tensors = split(call, call.reads())
    needs = _flat_needs(ctx.needs_input_grad, count)
    found = gradients_of_tensors(template, needs, grads[:2], (*tensors, *saved[-2:]))
    d_captures = list(found[3 : 3 + count])
    # Of a list of numbers that is empty, torch expects a list.
    d_sizes = None if ctx.rest[0] else []
    return *found[:3], d_captures, [None] * tables, d_sizes, None, None


def _flat_needs(needs: Sequence[Any], captures: int) -> list[bool]:
    """Of each tensor of a call whether its gradient is needed."""
    listed = needs[3] if isinstance(needs[3], list | tuple) else [needs[3]] * captures
    tabled = needs[4] if isinstance(needs[4], list | tuple) else []
    return [*needs[:3], *listed, *[False] * len(tabled)]


def _refuse(ctx: Any, *grads: Any) -> NoReturn:
    raise GradientError(
        "the operators of attention's derivatives have none themselves; call "
        "flexc.flex_attention, whose derivatives torch differentiates once more"
    )


def _define() -> None:
    cotangents = f"{COTANGENTS}, Tensor? t_d_out, Tensor? t_d_lse"
    for name, schema, function, fake in (
        (
            "attention",
            f"({CALL}) -> Tensor[]",
            attention,
            attention_fake,
        ),
        (
            "attention_backward",
            f"({POINT}, {COTANGENTS}, bool[] wanted) -> Tensor[]",
            attention_backward,
            gradients_fake,
        ),
        (
            "attention_jvp",
            f"({POINT}, {TANGENTS}) -> (Tensor, Tensor)",
            attention_jvp,
            attention_jvp_fake,
        ),
        (
            "attention_backward_jvp",
            f"({POINT}, {cotangents}, {TANGENTS}, bool[] wanted) -> Tensor[]",
            attention_backward_jvp,
            gradients_fake,
        ),
    ):
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
        LIBRARY.define(name + schema, tags=tags)
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"flexc::{name}", fake, lib=LIBRARY)
        is_first = name == "attention"
        torch.library.register_autograd(
            f"flexc::{name}",
            _backward if is_first else _refuse,
            setup_context=_setup_context if is_first else None,
            lib=LIBRARY,
        )


def _define_planning() -> None:
    LIBRARY.define(
        "plan(Tensor[] captures, SymInt[] sizes, SymInt[] numbers, str handle, "
        "Device device) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    LIBRARY.impl("plan", plan, "CompositeExplicitAutograd")
    torch.library.register_fake("flexc::plan", plan_fake, lib=LIBRARY)


_define()
_define_planning()
