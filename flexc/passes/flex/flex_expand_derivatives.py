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

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import flex
from flexc.dialects.flex import DerivativeOp
from flexc.passes.flex.derivatives.expansion import Expansion
from flexc.passes.tidy import erase_dead

# Ops over rows that become part of the one kernel over pairs that reads them.
#
# Delta, and cotangents times the weights of their rows, are numbers of rows that a
# program over pairs owns. It computes them where it loads these rows: a kernel less,
# and nothing is stored. A transposed kernel reads them as columns, again and again.


def absorb_rows(host: func.FuncOp, kernels: Mapping[str, func.FuncOp]) -> None:
    """Take ops over rows into the kernels that alone read them, the last ones first.

    `kernels` are the functions that the host function launches.
    """
    for launch in reversed(list(host.body.ops)):
        if not isinstance(launch, flex.LaunchOp):
            continue
        op = work_of(kernels[launch.callee.string_value()])
        if not isinstance(op, flex.RowDotsOp | flex.WeighRowsOp):
            continue
        readers = {use.operation for use in launch.outputs[0].uses}
        if len(readers) == 1 and isinstance(reader := readers.pop(), flex.LaunchOp):
            kernel = kernels[reader.callee.string_value()]
            sums = work_of(kernel)
            if isinstance(sums, flex.PairSumsOp) and not sums.is_transposed:
                absorb(launch, op, reader, kernel)


def work_of(kernel: func.FuncOp) -> Operation:
    """The op that makes what a kernel returns."""
    last = kernel.body.block.last_op
    assert isinstance(last, func.ReturnOp)
    owner = last.operands[0].owner
    assert isinstance(owner, Operation)
    return owner


def absorb(
    launch: flex.LaunchOp,
    op: flex.RowDotsOp | flex.WeighRowsOp,
    reader: flex.LaunchOp,
    kernel: func.FuncOp,
) -> None:
    """Take the op of a launched kernel into the kernel that reads what it makes."""
    block, inputs = kernel.body.block, list(reader.inputs)
    values: dict[SSAValue, SSAValue] = {}
    for given, operand in zip(launch.inputs, op.operands, strict=True):
        if given not in inputs:
            inputs.append(given)
            arg = block.insert_arg(operand.type, len(block.args))
            arg.name_hint = operand.name_hint
        values[operand] = block.args[inputs.index(given)]
    made = op.clone(values)
    made.result.name_hint = op.result.name_hint
    Rewriter.insert_op(made, InsertPoint.at_start(block))
    for number in reversed(range(len(inputs))):
        if inputs[number] is launch.outputs[0]:
            block.args[number].replace_all_uses_with(made.result)
            block.erase_arg(block.args[number])
            del inputs[number]
    reader.operands = inputs
    Rewriter.erase_op(launch)
    kernel.update_function_type()


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
