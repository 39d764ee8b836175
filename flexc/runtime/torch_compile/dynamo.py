"""The backend "flexc" of torch.compile: kernels for attention, the rest eagerly.

Dynamo's graphs hold torch's FlexAttention operator, or flexc's, which a kernel takes
the place of. torch itself refuses its attention on a CPU where an input requires grad:
detach the inputs, or call flexc's own function there.
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
from flexc.runtime.inputs.transforms import is_transformed, tracing
from flexc.runtime.torch_compile.attention_nodes import (
    OPERATOR,
    attend_as_torch,
    replace_attention,
)
from flexc.runtime.torch_compile.regions import Regions, compiled_for_flexc


def flexc_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """`torch.compile(model, backend="flexc", options={"backend": ..., ...})`."""
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
    """Make the backend known where the package's entry point is not installed."""
    if "flexc" not in registry._COMPILER_FNS:
        registry.register_backend(flexc_backend, name="flexc")


@cache
def keep_operator() -> None:
    """Let torch's operator end in flexc where Dynamo gives up on a frame.

    That is from now on, in calls of what torch.compile compiles with this backend.
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
