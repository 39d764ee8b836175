"""`flexc_attention`, the operator in Dynamo's graphs, whose mods are graphs too.

Dynamo traces `traced_attention`, and traces mods as it does for torch's
`flex_attention`: into subgraphs, whose captures become operands of the operator. Any
other tracer sees the operations that the operator calls. For tensors without data,
these are the operators of torch.library.

Inductor writes calls of the functions `attention`, `attention_backward` and `plan` in
place of those operators. A call through the dispatcher takes longer than the launches
of a tape, and AOTAutograd has recorded derivatives already. Inductor stores its code on
the disk, with imports of these functions. A handle depends on the version of flexc, so
only the version that wrote such code reads it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd import profiler
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    _identity,
    noop_mask,
)

from flexc.errors import OptionError
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.derivatives import run
from flexc.runtime.autograd.functions import (
    is_differentiated,
    is_transformed,
    run_attention,
    run_template,
)
from flexc.runtime.autograd.template import split
from flexc.runtime.inputs.arguments import NO_BLOCKS, Results
from flexc.runtime.inputs.notes import TABLES
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.inputs.wrappers import is_functionalized, plain, tracing
from flexc.runtime.interception import compiled_for_flexc
from flexc.runtime.torch_compile.graph_call import (
    BACKEND_OPTION,
    GraphCall,
    Operands,
    operands_of_mask,
    read_graph_options,
)
from flexc.runtime.torch_compile.mod_graphs import FunctionMods, ModGraphs, mods_of
from flexc.runtime.torch_compile.operators import library
from flexc.runtime.torch_compile.operators.planning import with_planned
from flexc.runtime.torch_compile.operators.sharded import (
    is_distributed,
    teach_distributed,
)
from flexc.runtime.torch_compile.operators.traced import TracedAttention


def _past_the_dispatcher(name: str) -> Callable[..., Any]:
    """Return an operator's function. A profiler sees it as the operator."""
    function = getattr(library, name)
    operator = getattr(torch.ops.flexc, name).default

    def call(*args: Any) -> Any:
        if profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            return operator(*args)
        return function(*args)

    return call


attention = _past_the_dispatcher("attention")
attention_backward = _past_the_dispatcher("attention_backward")
plan = _past_the_dispatcher("plan")


def teach_inductor() -> None:
    """Let Inductor write calls of the functions above, if its registry exists."""
    try:
        from torch._inductor.codegen import custom_extern_kernel_codegen as registry

        entry: Any = registry.CustomCodegen
        known: dict[str, Any] = registry.CUSTOM_EXTERN_KERNEL_CODEGEN
    except (ImportError, AttributeError):
        return
    for name in ("attention", "attention_backward", "plan"):
        known[f"torch.ops.flexc.{name}.default"] = entry(python=_writer(name))


def _writer(name: str) -> Callable[[Any, Callable[[Any], None]], None]:
    """Return a code generator that writes an operator's call as a function's call."""

    def write(node: Any, writeline: Callable[[Any], None]) -> None:
        from torch._inductor.codegen.wrapper import ExternKernelAllocLine
        from torch._inductor.virtualized import V

        class Call(ExternKernelAllocLine):
            """The line of an operator, with the function's name in place of the
            operator's.
            """

            def codegen(self, code: Any) -> None:
                args = [*self.node.codegen_args(), *self.node.codegen_kwargs()]
                called = f"flexc_{name}({', '.join(args)})"
                code.writeline(f"{self.node.get_name()} = {called}")

        wrapper = V.graph.wrapper_code
        wrapper.add_import_once(f"from {__name__} import {name} as flexc_{name}")
        writeline(Call(wrapper, node))

    return write


NAME = "flexc_attention"

GQA, LSE, MAX_SCORES, MASKED = (
    "FLEXC_ENABLE_GQA",
    "FLEXC_LSE",
    "FLEXC_MAX_SCORES",
    "FLEXC_MASKED",
)
"""Options, besides torch's, that hold the arguments of `flex_attention`."""

REFUSED = "FLEXC_REFUSED"
"""The option with the error message of a refused call. Dynamo cannot trace an error
that other code raises.
"""


class FlexcAttention(HigherOrderOperator):
    """The operator of Dynamo's graphs. Its operands are those of torch's operator.

    Results are in natural units. A result that is not asked for has no elements.
    """

    def __init__(self) -> None:
        super().__init__(NAME)

    @torch.compiler.disable(reason="flexc's operator launches its own kernels")
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query: Any,
        key: Any,
        value: Any,
        score: Any,
        block_mask: tuple[Any, ...],
        scale: Any,
        options: dict[str, Any],
        score_captures: tuple[Any, ...] = (),
        mask_captures: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:
        if REFUSED in options:
            raise OptionError(options[REFUSED])
        mask = block_mask[-1] if options[MASKED] else None
        mods, captures = mods_of((score, mask), (score_captures, mask_captures))
        choices = read_graph_options(options)
        if isinstance(mods, FunctionMods):
            choices = (compiled_for_flexc() or NO_CHOICES).merge(choices)
        outputs = Outputs(options[LSE], options[MAX_SCORES])
        call = GraphCall(mods, outputs, choices, options[GQA])
        rest = operands_of_mask(block_mask, captures)
        operands = Operands(query, key, value, scale, *rest)
        if isinstance(mods, ModGraphs) and tracing(plain(query)):
            traced = TracedAttention.of(call, operands)
            if torch.compiler.is_exporting():
                # A saved program holds mods that flexc traced: they have a text.
                traced = traced.imported()
            found = run_traced(traced)
        else:
            found = run_attention(call.prepare(operands))
        return tuple(query.new_empty(0) if r is None else r for r in found)


def run_seen(call: Attention) -> Results:
    """Run a call as operators, which torch's modes and classes of tensors see."""
    return run_traced(TracedAttention.of_eager(call))


def run_traced(traced: TracedAttention) -> Results:
    """Run a call as operators. If nothing has data, its blocks are planned by one."""
    if any(is_distributed(type(t)) for t in (traced.query, traced.key, traced.value)):
        teach_distributed()
    elif tracing(plain(traced.query)):
        traced = with_planned(traced)
    # torch has no rule to functionalize a Function; the operators have derivatives.
    if is_functionalized() or not (is_transformed() or is_differentiated(traced)):
        return run(traced)
    return run_template(*split(traced, traced.reads()))


FLEXC_OPERATOR = FlexcAttention()


class _PartOf:
    """A rank's part of a DTensor's variable, of which Dynamo makes plain scalars."""

    def __init__(self, whole: Any):
        self.whole, self.requires_grad = whole, whole.requires_grad

    def call_method(self, tx: Any, *called: Any) -> Any:
        return self.whole.call_method(tx, "to_local", [], {}).call_method(tx, *called)


def teach_dynamo() -> bool:
    """Let Dynamo trace the operator as torch's own, and both for DTensors.

    Return True if it can.
    """
    try:
        from torch._dynamo.variables import higher_order_ops

        variables: Any = higher_order_ops._hop_name_to_variable_class
        theirs: Any = higher_order_ops.FlexAttentionHigherOrderVariable
    except (ImportError, AttributeError):
        return False

    class FlexcAttentionVariable(theirs):
        """Traces mods with plain scalars, also for queries that are DTensors."""

        def create_wrapped_node(self, tx: Any, query: Any, *rest: Any) -> Any:
            is_own = self.value is FLEXC_OPERATOR
            is_ours = is_own or compiled_for_flexc() is not None
            if is_ours and is_distributed(query.python_type()):
                if not is_own:
                    teach_torch()
                query = _PartOf(query)
            return super().create_wrapped_node(tx, query, *rest)

    # torch's own has no rule for DTensors without `teach_torch`.
    variables[NAME] = variables["flex_attention"] = FlexcAttentionVariable
    return True


@cache
def teach_torch() -> None:
    """Let torch's operator run DTensors as flexc's, unless it has a rule for them."""
    from torch.distributed.tensor import DTensor

    if DTensor in torch.ops.higher_order.flex_attention.python_key_table:
        return

    @torch.ops.higher_order.flex_attention.py_impl(DTensor)
    def attend(*operands: Any, **kwargs: Any) -> Any:
        options: dict[str, Any] = operands[6]
        options = options | {
            GQA: True,
            LSE: options.get("OUTPUT_LOGSUMEXP", True),
            MAX_SCORES: options.get("OUTPUT_MAX", False),
            MASKED: True,
        }
        operator: Any = FLEXC_OPERATOR
        out, *stats = operator(*operands[:6], options, *operands[7:], **kwargs)
        return out, *(t / math.log(2) for t in stats)


DYNAMO_KNOWS = teach_dynamo()
teach_inductor()


def traced_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None,
    block_mask: BlockMask | None,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Mapping[str, Any] | None,
    return_aux: AuxRequest | None,
    mask_mod: Callable[..., Any] | None,
    backend: str,
) -> Any:
    """Call the operator, and return its results in the form that the user asks for.

    Dynamo traces this function in place of `flex_attention`.
    """
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_max = return_aux is not None and return_aux.max_scores
    options = dict(kernel_options or {})
    options[BACKEND_OPTION] = backend
    options[GQA] = enable_gqa
    options[LSE] = wants_lse
    options[MAX_SCORES] = wants_max
    options[MASKED] = mask_mod is not None or block_mask is not None
    if return_lse and return_aux is not None:
        options[REFUSED] = "give return_lse or return_aux, not both"
    if mask_mod is not None and block_mask is not None:
        options[REFUSED] = "give block_mask or mask_mod, not both"
    out, lse, max_scores = FLEXC_OPERATOR(
        query,
        key,
        value,
        _identity if score_mod is None else score_mod,
        _operands_of_mask(query, key, block_mask, mask_mod),
        scale,
        options,
    )
    if return_aux is not None:
        aux_lse = lse if wants_lse else None
        return out, AuxOutput(lse=aux_lse, max_scores=max_scores if wants_max else None)
    return (out, lse) if return_lse else out


def _operands_of_mask(
    query: Tensor,
    key: Tensor,
    block_mask: BlockMask | None,
    mask_mod: Callable[..., Any] | None,
) -> tuple[Any, ...]:
    """Return lengths, tables, block size and mask, in the order of torch's operator."""
    if block_mask is None:
        lengths = (query.size(2), key.size(2))
        mask = noop_mask if mask_mod is None else mask_mod
        return (*lengths, *[None] * 8, NO_BLOCKS, NO_BLOCKS, mask)
    rows, columns = block_mask.BLOCK_SIZE
    tables = tuple([getattr(block_mask, name) for name in TABLES])
    if min(rows, columns) >= NO_BLOCKS:
        tables = (None,) * 8
    return (*block_mask.seq_lengths, *tables, rows, columns, block_mask.mask_mod)


in_graphs = traced_attention if DYNAMO_KNOWS else None
"""The function that Dynamo traces. None if Dynamo does not know the operator."""
