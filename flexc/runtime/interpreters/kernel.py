"""Running a `tile.kernel`: its arguments, its grid, its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor
from xdsl.dialects.builtin import MemRefType
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import KernelOp, ParamAttr, ParamKind
from flexc.runtime.interpreters.tile import PROGRAM, TileFunctions
from flexc.runtime.interpreters.values import as_value, dtype_of


def run_kernel(
    interpreter: Interpreter, kernel: KernelOp, args: Sequence[object]
) -> list[Tensor]:
    """Run every program, one after the other; the memrefs that were written.

    Outputs that `args` lack are made here and filled with NaN, so that an
    element which no program writes shows.
    """
    query, value = args[0], args[2]
    if not (isinstance(query, Tensor) and isinstance(value, Tensor)):
        raise InterpretationError("expected query, key and value as tensors")
    call = list(args)
    outputs = add_outputs(kernel, call, query, value)
    block = kernel.body.block
    values = tuple(
        kernel_argument(call, param, arg.type)
        for param, arg in zip(kernel.params, block.args, strict=True)
    )
    grid = kernel.grid.data.eval(list(query.shape[:3]), [])
    for position in product(*(range(n) for n in grid)):
        padded = (*position, *(0 for _ in range(3 - len(position))))
        interpreter.set_data(TileFunctions, PROGRAM, padded)
        interpreter.run_ssacfg_region(kernel.body, values, "kernel")
    return outputs


def add_outputs(
    kernel: KernelOp, call: list[object], query: Tensor, value: Tensor
) -> list[Tensor]:
    """The call's outputs in order, those that it lacks appended to it."""
    outputs: dict[int, Tensor] = {}
    written = {
        param.source.data: arg.type
        for param, arg in zip(kernel.params, kernel.body.block.args, strict=True)
        if isinstance(arg.type, MemRefType)
    }
    for source, type_ in sorted(written.items()):
        if source == len(call):
            shape = query.shape[:3]
            if type_.get_num_dims() == 4:
                shape = (*shape, value.shape[3])
            dtype = dtype_of(type_.element_type)
            call.append(torch.full(shape, torch.nan, dtype=dtype))
        if source > len(call):
            raise InterpretationError(
                f"expected output {len(call)} after the arguments, got {source}"
            )
        given = call[source]
        assert isinstance(given, Tensor)
        outputs[source] = given
    return list(outputs.values())


def kernel_argument(
    call: Sequence[object], param: ParamAttr, type_: Attribute
) -> Tensor:
    """What `param` says of the call's arguments."""
    source = call[param.source.data]
    if param.kind.data == ParamKind.ARGUMENT:
        return as_value(source, type_)
    assert isinstance(source, Tensor)
    if param.kind.data == ParamKind.DIM:
        number = source.shape[param.dim.data]
    else:
        number = source.stride(param.dim.data) // param.unit.data
    return as_value(number, type_)
