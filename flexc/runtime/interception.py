"""Calls of attention within a function that flexc compiles: what becomes of them.

While such a function runs or is captured, its thread has a `Scope`, which
`flexc.flex_attention` asks how to run, and torch's own `flex_attention` leads to
flexc's. People import torch's function by name, so no name can be patched:
its code object is exchanged, for the time that any thread has a scope.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from flexc.errors import TracingError
from flexc.runtime.inputs.arguments import Results
from flexc.runtime.inputs.options import Choices
from flexc.runtime.inputs.transforms import is_transformed, tracing

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


@dataclass(frozen=True)
class Scope:
    """How attention runs within a compiled function."""

    choices: Choices
    run: Callable[[Attention], Results] | None = None
    """What runs a call in the place of flexc."""
    tracing: bool = False

    def within(self, inner: Scope) -> Scope:
        """This scope for a compiled function that is called within it."""
        return replace(self, choices=self.choices.merge(inner.choices))


class _Current(threading.local):
    scope: Scope | None = None


_current = _Current()
_lock = threading.Lock()
_depth = 0


def current_scope() -> Scope | None:
    """The scope of this thread, None outside compiled functions."""
    return _current.scope


@contextmanager
def activate(scope: Scope) -> Iterator[None]:
    """Run a compiled function's Python code under a scope.

    What the function itself gives to `torch.compile` runs as it is written, so
    that the attention in it is met.
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
    """The code that torch's function has meanwhile; it has torch's globals."""
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
    """Have flexc's own `flex_attention` take the place of torch's within scopes."""
    global _ours
    _ours = function


def torch_attention(*args: Any, **kwargs: Any) -> Any:
    """torch's `flex_attention` while some thread has a scope."""
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


def check_not_traced(query: Tensor) -> None:
    """Refuse what has no data to compute with: other people's traces."""
    if (got := tracing(query)) is not None:
        raise _refusal(got)


class OnlyRunError(TracingError):
    """A capture meets what only a run can follow, such as a transform of torch.func."""


def check_not_transformed() -> None:
    """Refuse the batched and dual tensors of torch.func."""
    if is_transformed():
        raise OnlyRunError("attention under a torch.func transform is not captured")


def _refusal(got: str) -> TracingError:
    return TracingError(
        f"flexc.flex_attention expects tensors with data, got {got}: make_fx does not "
        "record it, nor does torch.export with strict=False; use strict=True, "
        "torch.compile or flexc.compile, which trace its mods"
    )
