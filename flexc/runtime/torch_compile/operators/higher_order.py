"""`flexc_attention`, the operator of Dynamo's graphs, whose mods are graphs too.

Dynamo traces mods as it does those of torch's own `flex_attention`: into subgraphs,
whose captures become the operator's operands. Any other tracer sees what the operator
calls: where tensors have no data, the operators of torch.library.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator

from flexc.errors import OptionError
from flexc.runtime.attention.call import Outputs
from flexc.runtime.autograd.run import (
    is_differentiated,
    is_transformed,
    run_attention,
    run_template,
)
from flexc.runtime.autograd.template import split
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.inputs.transforms import plain, tracing
from flexc.runtime.torch_compile.graph_call import (
    GraphCall,
    Operands,
    read_graph_options,
)
from flexc.runtime.torch_compile.mod_graphs import (
    FunctionMods,
    ModGraphs,
    mods_of,
)
from flexc.runtime.torch_compile.operators.inductor import teach_inductor
from flexc.runtime.torch_compile.operators.planning import with_planned
from flexc.runtime.torch_compile.operators.traced import TracedAttention
from flexc.runtime.torch_compile.regions import compiled_for_flexc

NAME = "flexc_attention"

GQA, LSE, MAX_SCORES, MASKED = (
    "FLEXC_ENABLE_GQA",
    "FLEXC_LSE",
    "FLEXC_MAX_SCORES",
    "FLEXC_MASKED",
)
"""Options beside torch's: what `flex_attention` is asked for."""

REFUSED = "FLEXC_REFUSED"
"""The option that says why a call is refused: Dynamo traces no error of others."""


class FlexcAttention(HigherOrderOperator):
    """Operands are those of torch's operator, results in natural units.

    A result that is not asked for has no elements.
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
        rows, columns = (
            tuple(t for t in side if t is not None)
            for side in (block_mask[2:6], block_mask[6:10])
        )
        block, lengths = block_mask[-3:-1], block_mask[:2]
        operands = Operands(
            query, key, value, scale, rows, lengths, block, captures, columns
        )
        is_traced = isinstance(mods, ModGraphs) and tracing(plain(query))
        run = run_traced if is_traced else run_with_data
        return tuple(
            query.new_empty(0) if r is None else r for r in run(call, operands)
        )


def run_with_data(call: GraphCall, operands: Operands) -> Any:
    return run_attention(call.prepare(operands))


def run_traced(call: GraphCall, operands: Operands) -> Any:
    traced = with_planned(TracedAttention.of(call, operands))
    if not is_transformed() and not is_differentiated(traced):
        return traced.run()
    return run_template(*split(traced, traced.reads()))


FLEXC_OPERATOR = FlexcAttention()


def teach_dynamo() -> bool:
    """Let Dynamo trace the operator as torch's own; whether it can."""
    try:
        from torch._dynamo.variables import higher_order_ops

        variables: Any = higher_order_ops._hop_name_to_variable_class
        variables[NAME] = higher_order_ops.FlexAttentionHigherOrderVariable
    except (ImportError, AttributeError):
        return False
    return True


DYNAMO_KNOWS = teach_dynamo()
teach_inductor()
