"""Calls of flexc's operators in the code that Inductor writes: past the dispatcher.

It takes the dispatcher longer to hand a call to Python than it takes a tape to launch
the call's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flexc.runtime.operators import library
from flexc.runtime.operators.tapes import replayed

FUNCTIONS = ("attention", "attention_backward", "plan")
"""Operators that Inductor's code calls by the functions of their names here."""


def attention(*args: Any) -> Any:
    """Call `flexc::attention`, by an equal call's tape if it has one."""
    found = replayed("attention", args)
    return torch.ops.flexc.attention.default(*args) if found is None else found


def attention_backward(*args: Any) -> Any:
    """Call `flexc::attention_backward`, by an equal call's tape if it has one."""
    found = replayed("attention_backward", args)
    if found is not None:
        return found
    return torch.ops.flexc.attention_backward.default(*args)


def plan(*args: Any) -> Any:
    """Call `flexc::plan`, whose function replays tapes itself."""
    return library.plan(*args)


def teach_inductor() -> None:
    """Let Inductor write calls of the functions above, where it can be told to."""
    try:
        from torch._inductor.codegen import custom_extern_kernel_codegen as registry

        entry: Any = registry.CustomCodegen
        known: dict[str, Any] = registry.CUSTOM_EXTERN_KERNEL_CODEGEN
    except (ImportError, AttributeError):
        return
    for name in FUNCTIONS:
        known[f"torch.ops.flexc.{name}.default"] = entry(python=_writer(name))


def _writer(name: str) -> Callable[[Any, Callable[[Any], None]], None]:
    """Return what writes an operator's call as that of a function."""

    def write(node: Any, writeline: Callable[[Any], None]) -> None:
        from torch._inductor.codegen.wrapper import ExternKernelAllocLine
        from torch._inductor.virtualized import V

        wrapper = V.graph.wrapper_code
        if not V.graph.fx_wrapper:
            wrapper.add_import_once(f"from {__name__} import {name} as flexc_{name}")
            node.set_python_kernel_name(f"flexc_{name}")
        writeline(ExternKernelAllocLine(wrapper, node))

    return write
