"""The backend "flexc" of torch.compile: attention by kernels, other code by Inductor.

Dynamo's graphs hold torch's FlexAttention operator or flexc's operator, and a kernel
replaces either. torch refuses gradients of its own attention on a CPU, but not in
graphs of this backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._dynamo.backends import registry
from torch._functorch import config as functorch_config
from torch.fx import GraphModule
from torch.nn.attention import flex_attention as torch_flex

from flexc.errors import FlexcError, OptionError
from flexc.runtime.inputs.options import (
    DYNAMO_OPTIONS,
    INDUCTOR,
    check_mapping,
    read_choices_of_scope,
    read_flag,
)
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
    """Compile a graph for `torch.compile(model, backend="flexc", options={...})`.

    Inductor compiles what is not attention. It has the mode and its own options.
    """
    keep_operator()
    try:
        return compiled(gm, example_inputs, {} if options is None else options, mode)
    except FlexcError as error:
        return partial(refuse, error)  # Dynamo would hide its class.


def compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    mode: str | None,
) -> Callable[..., Any]:
    """Return a graph's function, compiled with flexc's options and Inductor's."""
    check_mapping("options", options)
    known = torch._inductor.list_options()
    theirs = {n: v for n, v in options.items() if str(n).replace("-", "_") in known}
    own = {n: v for n, v in options.items() if n in DYNAMO_OPTIONS or n not in theirs}
    choices = read_choices_of_scope("auto", own, DYNAMO_OPTIONS)
    Regions.have_options |= bool(own)
    replace_attention(gm, choices)
    if read_flag(INDUCTOR, own.get(INDUCTOR, True)):
        inductor: Any = torch._TorchCompileInductorWrapper(mode, theirs, None)
        # The key of this cache has the names of modules, but not what they compute.
        with functorch_config.patch(enable_autograd_cache=False):
            return inductor(gm, example_inputs)
    unused = [f"mode {mode!r}"] * (mode is not None)
    unused += [f"option {name!r}" for name in theirs if name not in own]
    if unused:
        raise OptionError(f'expected "inductor": True with {unused[0]} of Inductor')
    return gm.forward


def refuse(error: FlexcError, *_: Any) -> NoReturn:
    """Raise the error that a graph's compilation met."""
    raise error.with_traceback(None)


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


@torch._dynamo.assume_constant_result
def is_for_flexc() -> bool:
    """Return True in code that torch.compile compiles with this backend."""
    return compiled_for_flexc() is not None


def allow_gradients() -> None:
    """Let torch's attention have gradients on a CPU, in code for this backend."""
    check = getattr(torch_flex, "_validate_device", None)
    if check is None:  # A torch that has no such limit.
        return

    def validate(query: Tensor, key: Tensor, value: Tensor) -> None:
        if not is_for_flexc():
            check(query, key, value)

    torch_flex._validate_device = validate


allow_gradients()
