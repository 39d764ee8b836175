"""Settings of compiled functions for the calls of attention in them.

While a function that flexc compiles runs or is captured, its thread has a `Scope`.
`flexc.flex_attention` reads its settings from the scope, and torch's own
`flex_attention` calls flexc's. User code imports torch's function by name, so replacing
the name has no effect. Instead, the function's code object is replaced while any thread
has a scope.

After too many recompilations, Dynamo runs a frame and all its calls as plain Python.
Then torch's attention would compute every pair, and Dynamo notifies no backend. But the
call of `torch.compile` is still on the stack, where `compiled_for_flexc` finds it.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from flexc.runtime.inputs.arguments import Results
from flexc.runtime.inputs.options import DYNAMO_OPTIONS, Choices, read_choices_of_scope
from flexc.runtime.inputs.wrappers import (
    OnlyRunError,
    count_of_modes,
    current_transform,
    has_dispatch,
    is_transformed,
)
from flexc.runtime.tapes.recorder import recorder

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


@dataclass(frozen=True)
class Scope:
    """Settings of attention within a compiled function."""

    choices: Choices
    run: Callable[[Attention], Results] | None = None
    """A function that records a call of a capture, in place of flexc's kernels."""
    watches: bool = False
    """True if `run` also runs the call, so that any call may be made."""
    ranks: Callable[[Attention], str] | None = None
    """A function that says how ranks share a call."""

    @property
    def captures(self) -> bool:
        """True if calls are recorded, and have no data."""
        return self.run is not None and not self.watches and self.ranks is None

    def within(self, inner: Scope) -> Scope:
        """Return the scope of a compiled function that is called within this scope."""
        return replace(self, choices=self.choices.merge(inner.choices))


class _Current(threading.local):
    scope: Scope | None = None


_current = _Current()
_lock = threading.Lock()
_depth = 0


def current_scope() -> Scope | None:
    """Return the scope of this thread, None outside compiled functions."""
    return _current.scope


@contextmanager
def activate(scope: Scope) -> Iterator[None]:
    """Run a compiled function's Python code under a scope.

    `torch.compile` within the function runs eagerly, so that flexc sees the attention.
    """
    before = _current.scope
    _current.scope = scope
    _redirect()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _restore()
        _current.scope = before


def call_within(scope: Scope, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call flexc's own `flex_attention` under a scope."""
    before = _current.scope
    _current.scope = scope
    try:
        return fn(*args, **kwargs)
    finally:
        _current.scope = before


def _attention_code(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
):
    """Call `torch_attention`. This code replaces the code of torch's function.

    It runs with torch's globals.
    """
    from flexc.runtime.interception import torch_attention

    return torch_attention(
        query,
        key,
        value,
        score_mod,
        block_mask,
        scale,
        enable_gqa,
        return_lse,
        kernel_options,
        return_aux=return_aux,
    )


_patched: Any = inspect.unwrap(torch_flex.flex_attention)
_original_code = _patched.__code__
_original = FunctionType(
    _original_code, _patched.__globals__, "flex_attention", _patched.__defaults__
)
_original.__kwdefaults__ = _patched.__kwdefaults__


_ours: Callable[..., Any] = _original


def redirect_to(function: Callable[..., Any]) -> None:
    """Set the function that replaces torch's `flex_attention` within scopes."""
    global _ours
    _ours = function


def torch_attention(*args: Any, **kwargs: Any) -> Any:
    """Run `flex_attention`: flexc's if the thread has a scope, else torch's."""
    function = _original if _current.scope is None else _ours
    return function(*args, **kwargs)


def _redirect() -> None:
    global _depth
    with _lock:
        _depth += 1
        _patched.__code__ = _attention_code.__code__


def _restore() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _patched.__code__ = _original_code


def is_seen(query: Any, key: Any, value: Any) -> bool:
    """Return True if torch expects operators: for its modes and for its classes.

    These are modes and classes with a `__torch_dispatch__`, such as those of tracers,
    of selective checkpoints and of distributed tensors.
    """
    # This is asked at every call, so it must be fast.
    if count_of_modes() and recorder() is None:
        return True
    is_plain = type(query) is Tensor is type(key) is type(value)
    if is_plain and current_transform() is None:
        return _is_functional(query)
    return has_dispatch(query) or has_dispatch(key) or has_dispatch(value)


_is_functional: Any = torch._is_functional_tensor  # pyright: ignore


def check_not_transformed() -> None:
    """Refuse the batched and dual tensors of torch.func."""
    if is_transformed():
        raise OnlyRunError("attention under a torch.func transform is not captured")


def check_not_captured(what: str) -> None:
    """Let a function of `flexc.compile` that has calls with `what` only run."""
    scope = current_scope()
    if scope is not None and scope.captures:
        raise OnlyRunError(f"attention with {what} is not captured")


class Regions:
    """Facts about the calls of torch.compile in this process."""

    have_options = False
    """True if a call gave options to flexc, which hold even if Dynamo gives up."""


BACKEND_MODULE = "flexc.runtime.torch_compile.dynamo"
"""The module of the backend for torch.compile."""


def compiled_for_flexc(within_torch: bool = False) -> Choices | None:
    """Return the choices of the innermost `torch.compile` on the stack, if for flexc.

    torch's own attention also calls `torch.compile`. With `within_torch`, frames up to
    torch's attention are skipped.
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
    """Return True for a frame of torch's `flex_attention`, or of its copy by Dynamo."""
    code = frame.f_code
    name = code.co_name.removeprefix("torch_dynamo_resume_in_").partition("_at_")[0]
    return code.co_filename == torch_flex.__file__ and name == "flex_attention"


def _choices_of(context: Any) -> Choices | None:
    """Return the choices of a call of `torch.compile`, None with another backend."""
    from torch._dynamo.eval_frame import innermost_backend

    backend: Any = innermost_backend(getattr(context, "callback", None) or _nothing)
    function = getattr(backend, "compiler_fn", backend)
    if getattr(function, "__module__", None) != BACKEND_MODULE:
        return None
    options = getattr(backend, "kwargs", {}).get("options") or {}
    own = {name: value for name, value in options.items() if name in DYNAMO_OPTIONS}
    return read_choices_of_scope("auto", own, DYNAMO_OPTIONS)


def _nothing() -> None:
    """Stand for the backend of a context without one."""
