"""Ops over rows that become part of the one kernel over pairs that reads them.

Delta, and cotangents times the weights of their rows, are numbers of rows that a
program over pairs owns. It computes them where it loads these rows: a kernel less, and
nothing is stored. A transposed kernel reads them as columns, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import flex


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
