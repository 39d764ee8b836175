"""Code that `torch.compile` has given up on, though it was to run with flexc.

Dynamo runs a frame as plain Python after so many recompilations, and all that it
calls: torch's attention then computes every pair of it. No backend is told, but the
call of `torch.compile` is still on the stack, so attention looks for it there.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.nn.attention import flex_attention as torch_flex

from flexc.runtime.inputs.options import (
    DYNAMO_OPTIONS,
    Choices,
    read_choices_of_scope,
)


class Regions:
    """What is known of the calls of torch.compile in this process."""

    have_options = False
    """Some gave options to flexc, which hold where Dynamo gave up too."""


BACKEND_MODULE = "flexc.runtime.torch_compile.dynamo"
"""Where the backend of torch.compile is."""


def compiled_for_flexc(within_torch: bool = False) -> Choices | None:
    """What the innermost `torch.compile` on the stack asks of flexc, if it is flexc's.

    Torch's own attention compiles what it runs, which is skipped: the call is meant
    that is `within_torch`.
    """
    from torch._dynamo.eval_frame import _TorchDynamoContext

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and within_torch:
        within_torch = not _is_attention(frame)
        frame = frame.f_back
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper":
            context = frame.f_locals.get("self")
            if isinstance(context, _TorchDynamoContext):
                return _choices_of(context)
        frame = frame.f_back
    return None


def _is_attention(frame: FrameType) -> bool:
    """Whether a frame is torch's `flex_attention`, or what Dynamo made of it."""
    code = frame.f_code
    name = code.co_name.removeprefix("torch_dynamo_resume_in_").partition("_at_")[0]
    return code.co_filename == torch_flex.__file__ and name == "flex_attention"


def _choices_of(context: Any) -> Choices | None:
    """The choices of a call of `torch.compile`, None with another backend."""
    from torch._dynamo.eval_frame import innermost_backend

    backend: Any = innermost_backend(getattr(context, "callback", None) or _nothing)
    function = getattr(backend, "compiler_fn", backend)
    if getattr(function, "__module__", None) != BACKEND_MODULE:
        return None
    options = getattr(backend, "kwargs", {}).get("options")
    return read_choices_of_scope("auto", options, DYNAMO_OPTIONS)


def _nothing() -> None:
    """A context without a backend has this."""
