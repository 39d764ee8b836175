"""`flex-expand-derivatives`: derivatives of attention as sums over pairs.

The function of a `flex.attention_backward` or `flex.attention_jvp` becomes calls of
kernels, each a function of its own, and what finishes their results:

- delta, the dot products of d_out and out;
- the query's gradient, with the row sums of what was read by head or by row;
- those of key and value, transposed, with the row sums of what was read by column;
- one more for each sum of what was read by distance or by pair;
- `flex.scatter_sums` for each read.

With `one_pass` the gradients of query, key and value are sums of one kernel, which
visits each pair once: five products in place of seven. It adds to what belongs to keys
in memory, `flex.sum_parts` adds that up. Sums by distance and by pair are its own too,
or those of the query's kernel. Reads by column keep a kernel of their own. Delta is
part of the kernel that reads it, if only one does, and if that owns the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from flexc.dialects import flex
from flexc.dialects.flex import DerivativeOp
from flexc.passes.derivatives.absorption import absorb_rows
from flexc.passes.derivatives.expansion import Expansion
from flexc.passes.tidy import erase_dead


def expanded(function: func.FuncOp, one_pass: bool = False) -> list[func.FuncOp]:
    """Expand the derivatives in a function, in place; the kernels that it launches."""
    name, kernels = function.sym_name.data, list[func.FuncOp]()
    derivatives = [o for o in function.walk() if isinstance(o, DerivativeOp)]
    for i, op in enumerate(derivatives):
        kernels += Expansion(op, f"{name}_{i}" if i else name, one_pass).run()
    if derivatives:
        # Not every derivative needs delta.
        erase_dead(function.body)
        # Results have their own layouts.
        function.update_function_type()
    if one_pass:
        absorb_rows(function, {kernel.sym_name.data: kernel for kernel in kernels})
    launches = (o for o in function.walk() if isinstance(o, flex.LaunchOp))
    launched = {launch.callee.string_value() for launch in launches}
    return [kernel for kernel in kernels if kernel.sym_name.data in launched]


@dataclass(frozen=True)
class FlexExpandDerivativesPass(ModulePass):
    """Take derivatives of attention apart into sums over pairs."""

    name = "flex-expand-derivatives"

    one_pass: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if isinstance(function, func.FuncOp):
                kernels = expanded(function, self.one_pass)
                op.body.block.insert_ops_before(kernels, function)
