"""Tapes of operators: what a graph calls again and again is replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexc.frontend.plain_values import number_key
from flexc.runtime.attention.call import Attention
from flexc.runtime.inputs.listed_blocks import check_listed
from flexc.runtime.replay.repeats import repeat, tape_of
from flexc.runtime.torch_compile.operators.traced import (
    bind,
    lookup,
    resolved,
)

ARGUMENTS = 8
"""How many arguments of an operator say which call it is of."""

TAPED = ("attention", "attention_backward")
"""Operators that have tapes."""

any_requires_grad: Any = torch._C._any_requires_grad  # pyright: ignore


class Operators(torch.library.Library):
    """A library whose operators replay tapes before they are dispatched any further.

    Where a gradient might be recorded torch calls Python, that the dispatcher again,
    and that Python: it takes longer than to replay a tape.
    """

    def impl(
        self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any
    ) -> None:
        if dispatch_key == "Autograd" and op_name in TAPED:
            fn = _replayed_or(op_name, fn)
        super().impl(op_name, fn, dispatch_key, **options)


def _replayed_or(name: str, record: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's kernel for autograd, of which `record` is all but the tapes."""

    def run(keyset: Any, *args: Any) -> Any:
        is_recorded = torch.is_grad_enabled() and any_requires_grad(*args)
        found = None if is_recorded else _replayed(name, args)
        return record(keyset, *args) if found is None else found

    return run


def repeated(
    name: str, args: Sequence[Any], run: Callable[[Attention], list[Tensor]]
) -> list[Tensor]:
    """What is run of a call with data; by a tape where an equal call has one."""
    arguments, numbers = args[:ARGUMENTS], None
    check_tables(arguments)
    if reads_numbers(arguments):
        # Numbers that are tensors are read before anything is recorded.
        numbers = resolved(arguments)
        *front, _, handle = arguments
        front[3] = numbers.signature.captures
        args = (*front, numbers.scale, handle, *args[ARGUMENTS:])
    key, tensors = _asked(name, args)

    def bound() -> tuple[Any, ...]:
        return tuple(run(bind(arguments, numbers)))

    return list(repeat(key, tensors, tensors[0].device, bound))


def _replayed(name: str, args: Sequence[Any]) -> list[Tensor] | None:
    """What a tape gives for an operator's arguments; None where there is none."""
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
    """What tapes of an operator are found by, and the tensors that they are of."""
    query, key, value, captures, tables, sizes, scale, handle, *rest = args
    *others, wanted = rest or ((),)
    static = (name, handle, number_key(scale), tuple(sizes), tuple(wanted))
    return static, (query, key, value, *captures, *tables, *others)


def reads_numbers(arguments: Sequence[Any]) -> bool:
    """Whether some of a call's numbers are tensors."""
    return arguments[-2] is None or bool(lookup(arguments[-1]).mods.numbers)


def check_tables(arguments: Sequence[Any]) -> None:
    """Check what the tables of a call list: nothing is known of earlier ones."""
    query, key, _, _, tables, sizes, *_, handle = arguments
    if tables and query.is_cpu and (constants := lookup(handle)).blocks is None:
        rows = tables[: len(tables) // 2] if constants.columns else tables
        check_listed(rows, -(-key.size(2) // sizes[1]))
