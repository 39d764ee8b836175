"""Calls of flexc's operators in the code that Inductor writes: past the dispatcher.

It takes the dispatcher longer to hand a call to Python than it takes a tape to launch
the call's kernels. Inductor's graphs have no use for it: what is to be differentiated
was recorded by AOTAutograd before they are made.

Inductor keeps its code on the disk, with imports of the functions below. A handle tells
versions of flexc apart, so only the version that wrote such code reads it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

from flexc.runtime.torch_compile.operators import library


def _past_the_dispatcher(name: str) -> Callable[..., Any]:
    """Return an operator's function, which a profiler sees as the operator."""
    function = getattr(library, name)
    operator = getattr(torch.ops.flexc, name).default

    def call(*args: Any) -> Any:
        if profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            return operator(*args)
        return function(*args)

    return call


attention = _past_the_dispatcher("attention")
attention_backward = _past_the_dispatcher("attention_backward")
plan = _past_the_dispatcher("plan")


def teach_inductor() -> None:
    """Let Inductor write calls of the functions above, where it can be told to."""
    try:
        from torch._inductor.codegen import custom_extern_kernel_codegen as registry

        entry: Any = registry.CustomCodegen
        known: dict[str, Any] = registry.CUSTOM_EXTERN_KERNEL_CODEGEN
    except (ImportError, AttributeError):
        return
    for name in ("attention", "attention_backward", "plan"):
        known[f"torch.ops.flexc.{name}.default"] = entry(python=_writer(name))


def _writer(name: str) -> Callable[[Any, Callable[[Any], None]], None]:
    """Return what writes an operator's call as that of a function."""

    def write(node: Any, writeline: Callable[[Any], None]) -> None:
        from torch._inductor.codegen.wrapper import ExternKernelAllocLine
        from torch._inductor.virtualized import V

        class Call(ExternKernelAllocLine):
            """The line of an operator, but for the name of what is called."""

            def codegen(self, code: Any) -> None:
                args = [*self.node.codegen_args(), *self.node.codegen_kwargs()]
                called = f"flexc_{name}({', '.join(args)})"
                code.writeline(f"{self.node.get_name()} = {called}")

        wrapper = V.graph.wrapper_code
        wrapper.add_import_once(f"from {__name__} import {name} as flexc_{name}")
        writeline(Call(wrapper, node))

    return write
