"""The backend "flexc" of torch.compile: kernels for attention, the rest eagerly.

Dynamo's graphs hold torch's FlexAttention operator, or flexc's, which a kernel takes
the place of. torch itself refuses its attention on a CPU where an input requires grad:
detach the inputs, or call flexc's own function there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.backends import registry
from torch.fx import GraphModule

from flexc.errors import OptionError
from flexc.runtime.attention_nodes import replace_attention
from flexc.runtime.options import DYNAMO_OPTIONS, read_choices_of_scope


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
    replace_attention(gm, read_choices_of_scope("auto", options, DYNAMO_OPTIONS))
    return gm.forward


def register() -> None:
    """Make the backend known where the package's entry point is not installed."""
    if "flexc" not in registry._COMPILER_FNS:
        registry.register_backend(flexc_backend, name="flexc")
