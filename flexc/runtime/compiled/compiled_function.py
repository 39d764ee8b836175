"""`compile`: capture of functions that call attention, with kernels in their graphs.

A function is captured by `make_fx` at the first call of each kind. The graph serves
every later call of that kind: calls with the same Python code and objects that the
function reaches, and with tensors (parameters included) of the same dtypes and devices.
The values of tensors are read at each call. Lengths are symbols of the graph, and
numbers become symbols once they have changed. Guards check the assumptions that a trace
makes about symbols (see `Kind`).

Some functions run as plain Python code: functions with state that cannot be keyed (such
as reads by `getattr`), functions that change Python objects, and functions that control
autograd (`no_grad` blocks, hooks and custom Functions where gradients are recorded).
Their attention is compiled all the same.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, overload
from unittest.mock import patch

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses import fake_tensor
from torch.fx import GraphModule
from torch.fx.experimental import symbolic_shapes
from torch.nn.attention import flex_attention as torch_flex

from flexc.errors import OptionError
from flexc.runtime.compiled.call_symbols import Place, changes, extents, lengths_of
from flexc.runtime.compiled.function_state import CallState, Compiled, read_call
from flexc.runtime.compiled.function_trace import Trace, trace_function
from flexc.runtime.compiled.shortcut import Shortcut
from flexc.runtime.inputs.options import Choices, kernel_options, read_choices_of_scope
from flexc.runtime.inputs.wrappers import count_of_modes, is_transformed
from flexc.runtime.interception import Scope, activate, call_within, current_scope
from flexc.runtime.interface import flex_attention
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process.recent import Recent

MAX_TRACES = 128
"""The largest number of captures for one kind of calls. Further calls are run."""

MAX_FACTS = 1024
"""The number of sets of sizes and numbers for which a capture is cached."""

STATIC: frozenset[Place] = frozenset()


class Kind:
    """The captures for calls of one kind, and a cache of the capture for each call.

    Lengths are symbols from the start, other sizes and numbers once they have changed.
    A function that cannot be traced with symbols is traced for each of their values.
    """

    def __init__(self, first: CallState):
        self._first = extents(first.captures)
        self._lengths = lengths_of(first.captures)
        self._known: Recent[Trace] = Recent(MAX_FACTS)
        self._traces: list[Trace] = []
        self._changed: set[Place] = set()
        self._refused: set[frozenset[Place]] = set()
        """Sets of symbols with which a trace failed."""
        self._only_runs = False
        """True if all calls must run: none or too many captures are possible."""

    def trace(self, state: CallState, choices: Choices) -> Trace | None:
        """Return the capture for a call, None for a call that has to be run."""
        if self._only_runs:
            return None
        facts = state.facts
        found = self._known.find(facts)
        if found is not None:
            return found
        with compile_lock:  # Threads with an equal call wait for the first capture.
            found = self._find(state) or self._make(state, choices)
        return None if found is None else self._known.add(facts, found)

    def _find(self, state: CallState) -> Trace | None:
        holding = (t for t in self._traces if t.guards.hold(state.captures))
        return next(holding, None)

    def _make(self, state: CallState, choices: Choices) -> Trace | None:
        if len(self._traces) >= MAX_TRACES:
            self._only_runs = True
            return None
        counters["functions traced"] += 1
        for places in self._attempts(state):
            try:
                # A trace with symbols that fails is not an error.
                with _without_logs() if places else nullcontext():
                    found = trace_function(state, choices, places)
            except Exception:
                # Python code may need a real number. Any other error occurs again
                # without symbols, and its message then has numbers.
                if not places:
                    raise
                found = None
            if found is not None:
                self._traces.append(found)
                return found
            self._refused |= {places} if places else set()
        self._only_runs = True
        return None

    def _attempts(self, state: CallState) -> Iterator[frozenset[Place]]:
        """Yield sets of sizes and numbers to make symbols, the largest first."""
        self._changed |= changes(self._first, extents(state.captures))
        every = self._lengths | self._changed
        for places in (every, frozenset(p for p in every if p[1] is not None)):
            refused = places in self._refused or state.inspects_types
            if places and not refused:
                yield places
        yield STATIC


@contextmanager
def _without_logs() -> Iterator[None]:
    """Let torch log no error of a trace."""
    with (
        patch.object(symbolic_shapes.log, "disabled", True),
        patch.object(fake_tensor.log, "disabled", True),
    ):
        yield


F = TypeVar("F", bound=Callable[..., Any])

MAX_KINDS = 256
"""The number of kinds of calls for which captures are cached."""

_kinds: Recent[Kind] = Recent(MAX_KINDS)
"""Kinds of all functions. Closures of equal code share them."""


@overload
def compile(
    fn: F, *, backend: str = "auto", options: Mapping[str, Any] | None = None
) -> F: ...


@overload
def compile(
    fn: None = None, *, backend: str = "auto", options: Mapping[str, Any] | None = None
) -> Callable[[F], F]: ...


def compile(
    fn: Any = None, *, backend: str = "auto", options: Mapping[str, Any] | None = None
) -> Any:
    """Compile the attention in a function; also a decorator.

    Args:
        fn: torch's `flex_attention`, flexc's, a partial of one, or any function,
            method or `torch.nn.Module` that calls them among other tensor code.
        backend: "auto" (by device), "triton", "cpp" or "eager", for calls without a
            backend of their own.
        options: `{"kernel_options": {...}}`: torch's BLOCK_M, BLOCK_N, num_warps
            and num_stages, for calls without such options of their own.
            `{"deterministic": True}`: gradients of equal bits at every run.

    Returns:
        A function like `fn`. For attention itself it also takes `mask_mod`.

    Raises:
        OptionError: for an unknown backend or option.
        DataDependentControlFlowError: when called, if `fn` branches in Python on a
            tensor's value.
    """
    if fn is None:
        return functools.partial(compile, backend=backend, options=options)
    if not callable(fn):
        raise OptionError(f"compile expects a function, got {type(fn).__name__}")
    choices = read_choices_of_scope(backend, options)
    if _is_attention(fn):
        return _compiled_attention(fn, choices)
    return CompiledFunction(fn, choices)


def _is_attention(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn in (torch_flex.flex_attention, flex_attention)


def _compiled_attention(fn: Any, choices: Choices) -> Any:
    """Return flexc's `flex_attention` with a backend and options of its own."""
    scope = Scope(choices)
    call = _with_flexc(fn)
    own = {"backend": choices.backend, "kernel_options": kernel_options(choices)}

    def compiled(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            asked = kwargs.get("kernel_options") or {}
            kwargs["kernel_options"] = {**own["kernel_options"], **asked}
            return call(*args, **{"backend": own["backend"], **kwargs})
        outer = current_scope()
        inner = scope if outer is None else outer.within(scope)
        return call_within(inner, call, args, kwargs)

    name = {"__name__": "flex_attention", "__doc__": flex_attention.__doc__}
    vars(compiled).update(__wrapped__=fn, __signature__=inspect.signature(call))
    for key, value in name.items():
        setattr(compiled, key, value)
    return compiled


def _with_flexc(fn: Any) -> Any:
    """Return a partial of flexc's function for a partial of torch's function."""
    if not isinstance(fn, functools.partial):
        return flex_attention
    return functools.partial(_with_flexc(fn.func), *fn.args, **fn.keywords)


class CompiledFunction(Compiled):
    """A function whose attention is compiled. It is called as the function is."""

    def __init__(self, fn: Callable[..., Any], choices: Choices):
        super().__init__(fn, choices)
        self._shortcut = Shortcut()
        if not isinstance(fn, functools.partial | torch.nn.Module):
            functools.update_wrapper(self, fn)
        self.__wrapped__ = fn

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the name of a decorated function, by which pickle finds functions."""
        found: Any = sys.modules.get(self.__module__)
        name: str = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the cache of captures."""
        return {k: v for k, v in vars(self).items() if k != "_shortcut"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _shortcut=Shortcut())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a decorated method as a plain method is bound."""
        return self if instance is None else functools.partial(self, instance)

    @torch.compiler.disable(reason="flexc.compile captures its function itself")
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the captured function, or the function itself if there is no capture."""
        outer = current_scope()
        if outer is not None:
            return self._run(outer.within(self._scope), args, kwargs)
        # Another tool traces the call, or its tensors have wrappers.
        if count_of_modes() or is_transformed():
            return self._run(self._scope, args, kwargs)
        known = self._shortcut.find(args, kwargs)
        if known is not None:
            trace, values = known
            return trace.run(values)
        state = read_call(self.fn, args, kwargs)
        trace = self._trace(state) if state.sound else None
        if trace is None:
            return self._run(self._scope, args, kwargs)
        self._shortcut.note(state, trace)
        return trace(state.captures)

    def graph(self, *args: Any, **kwargs: Any) -> GraphModule | None:
        """Return the captured graph of a call, with FlexAttention operators in it.

        Return None for a function that runs as plain Python code.
        """
        state = read_call(self.fn, args, kwargs)
        trace = self._trace(state) if state.sound else None
        return None if trace is None else trace.source

    @property
    def _scope(self) -> Scope:
        return Scope(self.choices)

    def _run(self, scope: Scope, args: Any, kwargs: Any) -> Any:
        with activate(scope):
            return self.fn(*args, **kwargs)

    def _trace(self, state: CallState) -> Trace | None:
        """Return the capture for a call, None for a call that has to be run."""
        key = (self.choices, state.kind)
        return _kinds.get(key, lambda: Kind(state)).trace(state, self.choices)
