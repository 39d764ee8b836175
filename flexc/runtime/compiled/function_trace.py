"""Capture of a function by `make_fx`, and the captured function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.autograd.function import BackwardCFunction
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from flexc.errors import DataDependentControlFlowError, FlexcError, UnsupportedOpError
from flexc.frontend.call_watch import CallWatch
from flexc.frontend.capture import capture_mods
from flexc.frontend.captured import CapturedMod, CapturedMods
from flexc.frontend.guards import Guards
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.frontend.locations import error_location
from flexc.frontend.mistakes import is_value_read
from flexc.frontend.walk import Capture
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.attention.run import allocate
from flexc.runtime.compiled.call_symbols import FakeCall, Place
from flexc.runtime.compiled.function_state import CallState, read_call
from flexc.runtime.inputs.arguments import NO_BLOCKS
from flexc.runtime.inputs.options import Choices, kernel_options
from flexc.runtime.inputs.wrappers import OnlyRunError
from flexc.runtime.interception import (
    Results,
    Scope,
    activate,
    check_not_transformed,
)
from flexc.runtime.torch_compile.dynamo import (
    LN2,
    OPERATOR,
    mod_operand,
    replace_attention,
)
from flexc.runtime.torch_compile.graph_call import BACKEND_OPTION
from flexc.runtime.torch_compile.operators.traced import inputs_of_mod, known_value

STATIC_RESULTS = (bool, bytes, complex, float, int, str, type(None))
STATIC_RESULTS += (torch.device, torch.dtype)
COMPUTED = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of values that a graph returns."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A captured function: a graph over the captures of a call's state."""

    source: GraphModule
    """The graph as captured, with one FlexAttention operator for each attention."""
    graph: GraphModule
    """The graph with kernels in place of the operators."""
    inputs: tuple[int, ...]
    """The captures that the graph takes."""
    spec: pytree.TreeSpec
    results: tuple[Any, ...]
    """The leaves of the result: a place among the graph's outputs, or a constant."""
    guards: Guards
    """Conditions on the captures of a call."""

    def __call__(self, captures: Sequence[Capture]) -> Any:
        return self.run([captures[i] for i in self.inputs])

    def run(self, values: Sequence[Capture]) -> Any:
        """Return the results for the values that the graph takes."""
        # The graph has no hooks, so `forward` may be called directly.
        if torch._C._is_any_autocast_enabled():
            with _without_autocast():
                outputs = self.graph.forward(*values)
        else:
            outputs = self.graph.forward(*values)
        leaves = [outputs[r.place] if type(r) is _Place else r for r in self.results]
        if self.spec.is_leaf():
            return leaves[0]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class _Place:
    place: int


def _without_autocast() -> Any:
    """Return a context without autocast: the graph has the casts of its capture."""
    enabled = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    if not enabled:
        return nullcontext()
    stack = ExitStack()
    for device in enabled:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def trace_function(
    state: CallState, choices: Choices, places: frozenset[Place]
) -> Trace | None:
    """Capture a call, with symbols for the sizes and numbers at `places`.

    Return None for a function that can only be run, because its results are not a
    function of its tensors. Such a function changes Python objects, controls autograd,
    transforms attention by torch.func, or returns values other than tensors and
    constants.

    Raises:
        NotSymbolicError: if Python code needs real numbers.
    """
    fakes = FakeCall(state.captures, places)
    parts, codes = state.rebuild(fakes.values)
    watch, calls = WatchAutograd(), CallWatch(codes)
    scope = Scope(choices, lambda call: emit(call, watch))
    flat: list[Any] = []

    def call(*_: Any) -> list[Any]:
        fn, args, kwargs = parts
        with calls:
            result = fn(*args, **kwargs)
        leaves, spec = pytree.tree_flatten(result)
        flat[:] = [leaves, spec]
        return [leaf for leaf in leaves if isinstance(leaf, COMPUTED)]

    inputs = [fakes.values[i] for i in fakes.inputs]
    try:
        with fakes.mode:
            source = _capture(call, inputs, scope, watch)
    except OnlyRunError:
        return None
    leaves, spec = flat
    if calls.unread is not None or not _is_pure(parts, state, fakes, leaves):
        return None
    records_grad = torch.is_grad_enabled() and any(
        isinstance(v, Tensor) and v.requires_grad for v in inputs
    )
    if records_grad and (watch.seen or any(map(_has_custom_gradient, leaves))):
        return None
    guards = None if calls.wants_numbers and fakes.symbolic else fakes.guards()
    if guards is None:
        raise NotSymbolicError
    graph = GraphModule(source, deepcopy(source.graph))
    replace_attention(graph, choices)
    _call_directly(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Trace(source, graph, fakes.inputs, spec, _places(leaves), guards)


class NotSymbolicError(Exception):
    """A function uses lengths or numbers in a way that symbols do not support."""


def _call_directly(gm: GraphModule) -> None:
    """Let a graph call kernels and read sizes without torch's wrappers."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            node.op, node.target = "call_method", "size"
        elif node.op == "call_module":
            kernel = gm.get_submodule(str(node.target))
            node.op, node.target = "call_function", _function(kernel, node.name)


def _function(module: torch.nn.Module, name: str) -> Callable[..., Any]:
    """Return a function of a name that a graph may hold, for a module without hooks."""
    forward = module.forward

    def run(*args: Any) -> Any:
        return forward(*args)

    run.__name__ = run.__qualname__ = name
    return run


def _places(leaves: Sequence[Any]) -> tuple[Any, ...]:
    results: list[Any] = []
    count = 0
    for leaf in leaves:
        computed = isinstance(leaf, COMPUTED)
        results.append(_Place(count) if computed else leaf)
        count += computed
    return tuple(results)


def _is_pure(
    parts: tuple[Any, ...], before: CallState, fakes: FakeCall, leaves: Sequence[Any]
) -> bool:
    """Return True if a call changed only tensors, and returned tensors or constants."""
    if not all(isinstance(x, COMPUTED) or type(x) in STATIC_RESULTS for x in leaves):
        return False
    after = read_call(*parts)
    if after.structure != before.structure:
        return False
    pairs = zip(after.captures, fakes.values, strict=True)
    return all(a is f or (type(a) in STATIC_RESULTS and a == f) for a, f in pairs)


def _capture(call: Any, fakes: list[Any], scope: Scope, watch: Any) -> GraphModule:
    trace = make_fx(call, tracing_mode="real", _allow_non_fake_inputs=True)
    try:
        # A function of torch.compile is captured as the function that it wraps.
        inline = dynamo_config.patch(error_on_nested_fx_trace=False)
        with compile_lock, activate(scope), watch, inline:
            return trace(*fakes)
    except FlexcError:
        raise
    except Exception as error:
        where = error_location(error)
        if is_value_read(error):
            raise DataDependentControlFlowError(
                "a compiled function is captured without data, so Python cannot branch "
                "on or convert a value of a tensor: use torch.where, or move this part "
                "out of the function that flexc compiles",
                where,
            ) from None
        if isinstance(error, DynamicOutputShapeException):
            raise UnsupportedOpError(
                f"{error.func} has a result whose size depends on data: move it out "
                "of the function that flexc compiles",
                where,
            ) from None
        raise


class WatchAutograd(TorchFunctionMode):
    """A mode that detects control of autograd, which aten ops do not record."""

    NAMES = frozenset(
        {"_set_grad_enabled", "register_hook", "requires_grad_", "retain_grad"}
        | {"backward", "register_post_accumulate_grad_hook"}
    )
    SETTERS = (Tensor.requires_grad.__set__, Tensor.data.__set__, Tensor.data.__get__)  # pyright: ignore

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.paused = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if not self.paused and (name in self.NAMES or func in self.SETTERS):
            self.seen = True
        return func(*args, **(kwargs or {}))


def _has_custom_gradient(leaf: Any) -> bool:
    """Return True if a result depends on a torch.autograd.Function of the user."""
    stack = [leaf.grad_fn] if isinstance(leaf, Tensor) else []
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        is_ours = type(node).__name__ == f"{_Emit.__name__}Backward"
        if isinstance(node, BackwardCFunction) and not is_ours:
            return True
        stack += [n for n, _ in node.next_functions]
    return False


def emit(call: Attention, watch: WatchAutograd) -> Results:
    """Record a call of attention as an operator. Its results have no data."""
    check_not_transformed()
    inputs = [call.query, call.key, call.value]
    inputs += [c for c in call.signature.captures if isinstance(c, Tensor)]
    watch.paused = True
    try:
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            out, lse, max_scores = _Emit.apply(call, *inputs)
        else:
            out, lse, max_scores = _operator(call)
    finally:
        watch.paused = False
    wanted = call.outputs
    return (
        out,
        lse * LN2 if wanted.lse else None,
        max_scores * LN2 if wanted.max_scores else None,
    )


class _Emit(torch.autograd.Function):
    """A Function that makes results require a gradient, as in a run of the graph."""

    @staticmethod
    def forward(ctx: Any, call: Attention, *inputs: Tensor) -> Any:
        return _operator(call)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("a capture has no backward")


def _operator(call: Attention) -> tuple[Tensor, Tensor, Tensor]:
    mode = get_proxy_mode()
    assert mode is not None
    tracer: Any = mode.tracer
    with disable_proxy_modes_tracing():
        results = allocate(call.query, call.value, Outputs(True, True))
    mods = _capture_mods(call)
    captures = call.signature.captures
    operands = (
        call.query,
        call.key,
        call.value,
        mod_operand(tracer, "sdpa_score", _graph(mods.score), 5),
        _block_mask(call, mod_operand(tracer, "sdpa_mask", _graph(mods.mask), 4)),
        call.scale,
        {BACKEND_OPTION: call.backend, **kernel_options(call.choices)},
        inputs_of_mod(mods.score, captures),
        inputs_of_mod(mods.mask, captures),
    )
    proxies = pytree.tree_map(tracer.unwrap_proxy, operands)
    proxy = tracer.create_proxy("call_function", OPERATOR, proxies, {})
    track_tensor_tree(results, proxy, constant=None, tracer=tracer)
    return results  # pyright: ignore[reportReturnType]


def _capture_mods(call: Attention) -> CapturedMods:
    """Trace a call's mods and import them, so that errors name the user's line.

    Mods are traced for the values that symbols have in this call.
    """
    captures, query = call.signature.captures, call.query
    dims = (int(query.size(3)), int(call.value.size(3)))
    with _disable_current_modes():
        known = replace(call.signature, captures=tuple(map(known_value, captures)))
        mods = capture_mods(known, call.score_dtype, query.device.type)
        if mods.unread is not None or mods.custom_gradient:
            raise OnlyRunError(f"a mod reads {mods.unread or 'a Function of torch'}")
        built = AttentionCall(query.dtype, *dims)
        build_attention_module(mods.score, mods.mask, built)
    # The mods were traced for numbers, so their guards must hold for symbols too.
    if not mods.guards.hold(captures):
        raise NotSymbolicError
    return mods


def _graph(mod: CapturedMod | None) -> GraphModule | None:
    return None if mod is None else mod.graph


def _block_mask(call: Attention, mask: GraphModule) -> tuple[Any, ...]:
    """Return the tuple of a BlockMask in the order of torch's operator."""
    lengths = (call.query.size(2), call.key.size(2))
    if call.tables is None:
        return (*lengths, *[None] * 8, NO_BLOCKS, NO_BLOCKS, mask)
    notes = call.tables.notes
    sides = call.tables.tensors, () if notes is None else notes.columns
    rows, columns = ([*side, *[None] * 4][:4] for side in sides)
    return (*lengths, *rows, *columns, *call.tables.block_size, mask)
