"""The backend "flexc" of torch.compile: attention by kernels, other code by Inductor.

Dynamo's graphs hold torch's FlexAttention operator or flexc's operator, as captures by
`make_fx` do, and a kernel replaces either. Operands are query, key, value, the score's
graph, a BlockMask's tuple that ends in the mask's graph, the scale, options, and the
captures of each graph. torch refuses gradients of its own attention on a CPU, but not
in graphs of this backend.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._dynamo.backends import registry
from torch._functorch import config as functorch_config
from torch.fx import GraphModule, Node
from torch.nn.attention import flex_attention as torch_flex

from flexc.errors import FlexcError, OptionError
from flexc.runtime.autograd import Results
from flexc.runtime.inputs.arguments import Outputs
from flexc.runtime.inputs.options import (
    DYNAMO_OPTIONS,
    INDUCTOR,
    Choices,
    check_mapping,
    read_choices_of_scope,
    read_flag,
)
from flexc.runtime.inputs.wrappers import is_transformed, plain, tracing
from flexc.runtime.interception import Regions, compiled_for_flexc
from flexc.runtime.torch_compile.graph_call import (
    GraphCall,
    Operands,
    operands_of_mask,
    read_graph_options,
)
from flexc.runtime.torch_compile.mod_graphs import (
    ModGraphs,
    mods_of,
    trivial_graph,
)
from flexc.runtime.torch_compile.operators.higher_order import (
    FLEXC_OPERATOR,
    GQA,
    MASKED,
    run_traced,
)
from flexc.runtime.torch_compile.operators.traced import TracedAttention

OPERATOR = torch.ops.higher_order.flex_attention

LN2 = math.log(2.0)


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


def lift_limits() -> None:
    """Let torch's attention have gradients and largest scores on a CPU, in code for
    this backend.
    """
    check = getattr(torch_flex, "_validate_device", None)
    read_options = getattr(torch_flex, "_apply_kernel_options", None)
    if check is None or read_options is None:  # A torch that has no such limits.
        return

    def validate(query: Tensor, key: Tensor, value: Tensor) -> None:
        if not is_for_flexc():
            check(query, key, value)

    def apply_options(
        query: Tensor, key: Tensor, value: Tensor, return_lse: bool, *rest: Any
    ) -> Any:
        if len(rest) != 2 or rest[1] is None or not is_for_flexc():
            return read_options(query, key, value, return_lse, *rest)
        options, asked = rest
        given = options, torch_flex.AuxRequest(lse=asked.lse)
        options = read_options(query, key, value, return_lse, *given)
        options["OUTPUT_MAX"] = asked.max_scores
        return options

    torch_flex._validate_device = validate
    torch_flex._apply_kernel_options = apply_options


def attend_as_torch(choices: Choices, *operands: Any) -> Any:
    """Return the results of torch's operator for operands that have data."""
    query, key, value, score, block_mask, scale, options, *captures = operands
    captures += [()] * (2 - len(captures))
    mods, shared = mods_of((score, block_mask[-1]), (captures[0], captures[1]))
    outputs = Outputs(
        lse=options.get("OUTPUT_LOGSUMEXP", True),
        max_scores=options.get("OUTPUT_MAX", False),
    )
    call = GraphCall(mods, outputs, choices.merge(read_graph_options(options)))
    rest = operands_of_mask(block_mask, shared)
    results = AttentionKernel(call, True)(query, key, value, scale, *rest)
    return tuple(query.new_empty(0) if r is None else r for r in results)


class AttentionKernel(torch.nn.Module):
    """A module that replaces an operator in a graph and runs the kernel of its mods."""

    def __init__(self, call: GraphCall, stats_are_log2: bool):
        super().__init__()
        self.call = call
        self.stats_are_log2 = stats_are_log2

    def forward(self, *operands: Any) -> Results:
        given = Operands(*operands)
        if tracing(plain(given.query)):
            out, lse, max_scores = run_traced(TracedAttention.of(self.call, given))
        else:
            out, lse, max_scores = self.call.run(given)
        if not self.stats_are_log2:
            return out, lse, max_scores
        return (
            out,
            None if lse is None else lse / LN2,
            None if max_scores is None else max_scores / LN2,
        )


def replace_attention(gm: GraphModule, choices: Choices) -> int:
    """Replace every attention operator of a graph by a kernel. Return their number.

    Regions that other operators run, such as checkpoints, are graphs within the graph.
    """
    graphs = [module for module in gm.modules() if isinstance(module, GraphModule)]
    return sum(_replace_in(graph, choices) for graph in graphs)


def _replace_in(gm: GraphModule, choices: Choices) -> int:
    nodes = [n for n in gm.graph.nodes if n.target in (OPERATOR, FLEXC_OPERATOR)]
    for i, node in enumerate(nodes):
        _replace(gm, node, f"flexc_attention_{i}", choices)
    if nodes:
        gm.graph.lint()
        gm.recompile()
    return len(nodes)


def _replace(gm: GraphModule, node: Node, name: str, choices: Choices) -> None:
    operands: tuple[Any, ...] = node.args
    query, key, value, score, block_mask, scale, options, *rest = operands
    rest += [node.kwargs.get(n, ()) for n in _BUFFERS[len(rest) :]]
    masked = options.get(MASKED, True)
    mask = _mod_graph(gm, block_mask[-1]) if masked else None
    with gm.graph.inserting_before(node):
        mods, captures = ModGraphs.sharing(
            (_mod_graph(gm, score), mask), (rest[0], rest[1]), partial(_add_call, gm)
        )
    kernel = AttentionKernel(
        GraphCall(
            mods,
            _used_outputs(node),
            choices.merge(read_graph_options(options)),
            options.get(GQA, True),
        ),
        stats_are_log2=node.target is OPERATOR,
    )
    gm.add_submodule(name, kernel)
    args = (query, key, value, scale, *operands_of_mask(block_mask, captures))
    with gm.graph.inserting_before(node):
        call = gm.graph.call_module(name, args)
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    gm.graph.erase_node(node)
    # Erase only these graphs: other nodes without users may have effects.
    for graph in {score, block_mask[-1]}:
        if not graph.users:
            gm.graph.erase_node(graph)


_BUFFERS = ("score_mod_other_buffers", "mask_mod_other_buffers")


def _used_outputs(node: Node) -> Outputs:
    used: set[Any] = {user.args[1] for user in node.users if user.users}  # pyright: ignore
    return Outputs(lse=1 in used, max_scores=2 in used)


def _mod_graph(gm: GraphModule, node: Any) -> GraphModule:
    graph = gm.get_submodule(str(node.target))
    assert isinstance(graph, GraphModule)
    return graph


def _add_call(gm: GraphModule, whole: GraphModule, given: Sequence[Any]) -> list[Node]:
    """Add a call of a graph to another, and return the nodes of its results."""
    name = f"flexc_captures_{sum(1 for _ in gm.children())}"
    gm.add_submodule(name, whole)
    call = gm.graph.call_module(name, tuple(given))
    results: Any = whole.graph.output_node().args[0]
    return [
        gm.graph.call_function(operator.getitem, (call, i)) for i in range(len(results))
    ]


def mod_operand(
    tracer: Any, name: str, graph: GraphModule | None, arity: int
) -> GraphModule:
    """Register a mod's graph with the root of a capture, and return the graph."""
    graph = graph or trivial_graph(arity)
    tracer.root.register_module(tracer.get_fresh_qualname(name), graph)
    return graph


lift_limits()
