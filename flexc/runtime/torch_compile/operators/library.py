"""The operators of torch.library: attention, its gradients, and their tangents.

Each operator takes the arguments of a call in the order of `TracedAttention.arguments`.
A list of bools has an entry for query, key, value and each capture, and is True if a
list of tensors has one for it. A gradient has the strides of `torch.empty_like` of its
input. Repeated calls are replayed by a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.frontend.code_facts import number_key
from flexc.runtime.attention import run as attention_run
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.derivatives import Direction, Gradients, inputs_of, spread
from flexc.runtime.autograd.functions import gradients_of_tensors
from flexc.runtime.autograd.template import split
from flexc.runtime.inputs.listed_blocks import check_listed
from flexc.runtime.replay.repeats import repeat, tape_of
from flexc.runtime.torch_compile.operators.handles import lookup
from flexc.runtime.torch_compile.operators.planning import plan, plan_fake
from flexc.runtime.torch_compile.operators.traced import (
    ARGUMENTS,
    Arguments,
    TracedAttention,
    bind,
    captures_of,
    resolved,
)

TAPED = ("attention", "attention_backward")
"""Operators that have tapes."""

any_requires_grad: Any = torch._C._any_requires_grad  # pyright: ignore


class Operators(torch.library.Library):
    """A library whose operators replay tapes before any further dispatch.

    If a gradient may be recorded, torch enters Python, the dispatcher and Python once
    more, which takes longer than replaying a tape.
    """

    def impl(
        self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any
    ) -> None:
        if dispatch_key == "Autograd" and op_name in TAPED:
            fn = _replayed_or(op_name, fn)
        super().impl(op_name, fn, dispatch_key, **options)


def _replayed_or(name: str, record: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's kernel for autograd: a tape's replay, else `record`."""

    def run(keyset: Any, *args: Any) -> Any:
        if any(a is None for a in args[3:6]):  # AOTInductor's empty lists.
            args = (*args[:3], *(a or [] for a in args[3:6]), *args[6:])
        is_recorded = torch.is_grad_enabled() and any_requires_grad(*args)
        found = None if is_recorded else _replayed(name, args)
        return record(keyset, *args) if found is None else found

    return run


def repeated(
    name: str, args: Sequence[Any], run: Callable[[Attention], list[Tensor]]
) -> list[Tensor]:
    """Return the results of a call with data, by a tape if an equal call has one."""
    arguments, numbers = args[:ARGUMENTS], None
    check_tables(arguments)
    if reads_numbers(arguments):
        # Tensors that hold numbers are read before recording starts.
        numbers = resolved(arguments)
        *front, _, handle = arguments
        front[3] = numbers[0].captures
        args = (*front, numbers[1], handle, *args[ARGUMENTS:])
    key, tensors = _asked(name, args)

    def bound() -> tuple[Any, ...]:
        return tuple(run(bind(arguments, numbers)))

    return list(repeat(key, tensors, tensors[0].device, bound))


def _replayed(name: str, args: Sequence[Any]) -> list[Tensor] | None:
    """Return the results of a tape for these arguments, None if there is none."""
    arguments = args[:ARGUMENTS]
    if reads_numbers(arguments):
        return None
    key, tensors = _asked(name, args)
    tape = tape_of(key, tensors, args[0].device)
    if tape is None:
        return None
    check_tables(arguments)
    return list(tape(tensors))


def _asked(name: str, args: Sequence[Any]) -> tuple[Hashable, tuple[Any, ...]]:
    """Return the key for tapes of an operator, and the tensors that they take."""
    query, key, value, captures, tables, sizes, scale, handle, *rest = args
    *others, wanted = rest or ((),)
    static = (name, handle, number_key(scale), tuple(sizes), tuple(wanted))
    return static, (query, key, value, *captures, *tables, *others)


def reads_numbers(arguments: Sequence[Any]) -> bool:
    """Return True if some numbers of a call are tensors."""
    return arguments[-2] is None or bool(lookup(arguments[-1]).mods.numbers)


def check_tables(arguments: Sequence[Any]) -> None:
    """Check the tables of a CPU call. Each call may have other tables."""
    query, key, _, _, tables, sizes, *_, handle = arguments
    if tables and query.is_cpu and (constants := lookup(handle)).blocks is None:
        rows = tables[: len(tables) // 2] if constants.columns else tables
        check_listed(rows, -(-key.size(2) // sizes[1]))


LIBRARY = Operators("flexc", "FRAGMENT")

CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor[] captures, Tensor[] tables, "
    "SymInt[] sizes, float? scale, str handle"
)
POINT = f"{CALL}, Tensor out, Tensor lse"
COTANGENTS = "Tensor? d_out, Tensor? d_lse"
TANGENTS = "Tensor[] tangents, bool[] given"

NAMES = ("attention", "attention_backward", "attention_jvp", "attention_backward_jvp")
"""The operators of attention, without that of plans."""

Pair = tuple[Tensor, Tensor]


def attention(*arguments: Any) -> list[Tensor]:
    """Return out, then lse and max_scores if the handle asks for them."""

    def run(call: Attention) -> list[Tensor]:
        return [r for r in attention_run.run(call) if r is not None]

    return repeated("attention", arguments, run)


def attention_fake(*arguments: Any) -> list[Tensor]:
    query, _, value, *_, handle = arguments
    made = attention_run.allocate(query, value, lookup(handle).outputs)
    return [r for r in made if r is not None]


def attention_backward(*args: Any) -> list[Tensor]:
    """Return the wanted gradients."""
    out, lse, *cotangents, wanted = args[ARGUMENTS:]
    d_out, d_lse = cotangents

    def run(call: Attention) -> list[Tensor]:
        found = derivatives.backward(call, out, lse, (d_out, d_lse), tuple(wanted))
        return _laid_out(found, call)

    return repeated("attention_backward", args, run)


def attention_jvp(*args: Any) -> Pair:
    """Return the tangents of out and lse."""
    call, (out, lse, tangents, given) = _bound(args)
    found = derivatives.jvp(call, out, lse, spread(tangents, given))
    return _like(found[0], out), _like(found[1], lse)


def attention_jvp_fake(*args: Any) -> Pair:
    out, lse, *_ = args[ARGUMENTS:]
    return torch.empty_like(out), torch.empty_like(lse)


def attention_backward_jvp(*args: Any) -> list[Tensor]:
    """Return the tangents of the wanted gradients."""
    call, (out, lse, *cotangents, tangents, given, wanted) = _bound(args)
    d_out, d_lse, t_d_out, t_d_lse = cotangents
    along = Direction(spread(tangents, given), (t_d_out, t_d_lse))
    found = derivatives.backward(call, out, lse, (d_out, d_lse), tuple(wanted), along)
    return _laid_out(found, call)


def gradients_fake(*args: Any) -> list[Tensor]:
    """Return empty tensors like the inputs whose gradients are wanted."""
    arguments, wanted = args[:ARGUMENTS], args[-1]
    query, key, value, *_ = arguments
    pairs = zip((query, key, value, *captures_of(arguments)), wanted, strict=True)
    return [torch.empty_like(t) for t, wants in pairs if wants]


def _bound(args: Sequence[Any]) -> tuple[Attention, Sequence[Any]]:
    return bind(args[:ARGUMENTS]), args[ARGUMENTS:]


def _laid_out(found: Gradients, call: Attention) -> list[Tensor]:
    pairs = zip(found, inputs_of(call), strict=True)
    return [
        _like(gradient, value)
        for gradient, value in pairs
        if gradient is not None and isinstance(value, Tensor)
    ]


def _like(found: Tensor, value: Tensor) -> Tensor:
    """Return a tensor with the strides of `empty_like` of `value`."""
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
    """Return the gradients of a traced call, by the Functions of eager calls.

    Of a traced call, these Functions run operators.
    """
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
    # For an empty list of numbers, torch expects a list.
    d_sizes = None if ctx.rest[0] else []
    return *found[:3], d_captures, [None] * tables, d_sizes, None, None


def _flat_needs(needs: Sequence[Any], captures: int) -> list[bool]:
    """Return, for each tensor of a call, True if its gradient is needed."""
    listed = needs[3] if isinstance(needs[3], list | tuple) else [needs[3]] * captures
    tabled = needs[4] if isinstance(needs[4], list | tuple) else []
    return [*needs[:3], *listed, *[False] * len(tabled)]


def _refuse(ctx: Any, *grads: Any) -> NoReturn:
    raise GradientError(
        "the operators of attention's derivatives have none themselves; call "
        "flexc.flex_attention, whose derivatives torch differentiates once more"
    )


def _define() -> None:
    gradients = "bool[] wanted) -> Tensor[]"
    along = f"Tensor? t_d_out, Tensor? t_d_lse, {TANGENTS}"
    jvp = f"({POINT}, {TANGENTS}) -> (Tensor, Tensor)"
    backward = f"({POINT}, {COTANGENTS}, {gradients}"
    backward_jvp = f"({POINT}, {COTANGENTS}, {along}, {gradients}"
    for function, schema, fake in (
        (attention, f"({CALL}) -> Tensor[]", attention_fake),
        (attention_backward, backward, gradients_fake),
        (attention_jvp, jvp, attention_jvp_fake),
        (attention_backward_jvp, backward_jvp, gradients_fake),
    ):
        name, is_first = function.__name__, function is attention
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
        LIBRARY.define(name + schema, tags=tags)
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"flexc::{name}", fake, lib=LIBRARY)
        torch.library.register_autograd(
            f"flexc::{name}",
            _backward if is_first else _refuse,
            setup_context=_setup_context if is_first else None,
            lib=LIBRARY,
        )
    LIBRARY.define(
        "plan(Tensor[] captures, SymInt[] sizes, SymInt[] numbers, str handle, "
        "Device device) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    LIBRARY.impl("plan", plan, "CompositeExplicitAutograd")
    torch.library.register_fake("flexc::plan", plan_fake, lib=LIBRARY)


_define()


def register_operators() -> None:
    """Register flexc's operators, which programs of torch.export and AOTInductor call.

    A process that loads such a program without calling attention itself needs this
    before. More calls change nothing.
    """
