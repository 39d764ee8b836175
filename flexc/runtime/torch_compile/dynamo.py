"""The backend "flexc" of torch.compile: attention by kernels, other code eagerly.

Dynamo's graphs hold torch's FlexAttention operator or flexc's operator, and a kernel
replaces either. On a CPU, torch itself refuses its attention if an input requires a
gradient. In that case, detach the inputs or call flexc's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.backends import registry
from torch.fx import GraphModule

from flexc.errors import OptionError
from flexc.runtime.inputs.options import DYNAMO_OPTIONS, read_choices_of_scope
from flexc.runtime.inputs.wrappers import is_transformed, tracing
from flexc.runtime.interception import Regions, compiled_for_flexc
from flexc.runtime.torch_compile.attention_nodes import (
    OPERATOR,
    attend_as_torch,
    replace_attention,
)


def flexc_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph for `torch.compile(model, backend="flexc", options={...})`."""
    if mode is not None:
        raise OptionError(
            f'the backend "flexc" expects no mode, got {mode!r}; leave it out, or take '
            "torch's inductor with flexc.flex_attention in the model"
        )
    keep_operator()
    Regions.have_options |= bool(options)
    replace_attention(gm, read_choices_of_scope("auto", options, DYNAMO_OPTIONS))
    return gm.forward


def register() -> None:
    """Register the backend, in case the package's entry point is not installed."""
    if "flexc" not in registry._COMPILER_FNS:
        registry.register_backend(flexc_backend, name="flexc")


@cache
def keep_operator() -> None:
    """Let torch's operator run flexc's kernels if Dynamo gives up on a frame.

    This holds from now on, in calls of functions that torch.compile compiles with this
    backend.
    """
    operator: Any = type(OPERATOR)
    run = operator.__call__

    @torch.compiler.disable(reason="flexc launches its own kernels")
    def call(self: Any, query: Any, *rest: Any, **kwargs: Any) -> Any:
        is_run = not kwargs and not is_transformed() and tracing(query) is None
        choices = compiled_for_flexc(within_torch=True) if is_run else None
        if choices is None:
            return run(self, query, *rest, **kwargs)
        return attend_as_torch(choices, query, *rest)

    operator.__call__ = call
