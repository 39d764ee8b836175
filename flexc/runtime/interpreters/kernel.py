"""Interpreter of `tile.kernel`: its arguments, grid and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor
from xdsl.dialects.builtin import IntegerAttr, MemRefType
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import GRID_OF, KernelOp, ParamAttr, ParamKind
from flexc.runtime.interpreters.schedule import program
from flexc.runtime.interpreters.tile import PROGRAM, TileFunctions
from flexc.runtime.interpreters.values import as_value, dtype_of


def run_kernel(
    interpreter: Interpreter, kernel: KernelOp, args: Sequence[object]
) -> list[Tensor]:
    """Run attention's kernel on the call's arguments; return the written memrefs.

    Outputs missing in `args` are allocated and filled with NaN, so that an element that
    no program writes is visible.
    """
    call = list(args)
    outputs = add_outputs(kernel, call)
    run_programs(interpreter, kernel, call)
    return outputs


def run_programs(
    interpreter: Interpreter, kernel: KernelOp, call: Sequence[object]
) -> None:
    """Run the programs one after another.

    The grid is computed from the first argument, or from the argument that the kernel's
    `GRID_OF` attribute names.
    """
    number = kernel.attributes.get(GRID_OF)
    first = call[number.value.data if isinstance(number, IntegerAttr) else 0]
    if not isinstance(first, Tensor):
        raise InterpretationError("expected a tensor as the first argument")
    values = tuple(
        kernel_argument(call, param, arg.type)
        for param, arg in zip(kernel.params, kernel.body.block.args, strict=True)
    )
    for position in product(*(range(n) for n in grid_of(kernel, first))):
        padded = (*position, *(0 for _ in range(3 - len(position))))
        interpreter.set_data(TileFunctions, PROGRAM, padded)
        with program(interpreter):
            interpreter.run_ssacfg_region(kernel.body, values, "kernel")


def grid_of(kernel: KernelOp, first: Tensor) -> tuple[int, ...]:
    """Return the sizes of the grid for a first argument of shape (B, H, rows, ...)."""
    return kernel.grid.data.eval(list(first.shape[:3]), [])


def written_types(kernel: KernelOp) -> dict[int, MemRefType]:
    """Return the positions and types of the call's arguments that a kernel writes."""
    pairs = zip(kernel.params, kernel.body.block.args, strict=True)
    written = {
        p.source.data: a.type for p, a in pairs if isinstance(a.type, MemRefType)
    }
    return dict(sorted(written.items()))


def add_outputs(kernel: KernelOp, call: list[object]) -> list[Tensor]:
    """Return the call's outputs in order; append missing outputs to `call`."""
    outputs: list[Tensor] = []
    for source, type_ in written_types(kernel).items():
        if source == len(call):
            call.append(attention_output(call, type_))
        if source > len(call):
            raise InterpretationError(
                f"expected output {len(call)} after the arguments, got {source}"
            )
        given = call[source]
        assert isinstance(given, Tensor)
        outputs.append(given)
    return outputs


def attention_output(call: Sequence[object], type_: MemRefType) -> Tensor:
    """Allocate out, lse or max_scores, filled with NaN."""
    query, value = call[0], call[2]
    if not (isinstance(query, Tensor) and isinstance(value, Tensor)):
        raise InterpretationError("expected query, key and value as tensors")
    shape = query.shape[:3]
    if type_.get_num_dims() == 4:
        shape = (*shape, value.shape[3])
    return torch.full(shape, torch.nan, dtype=dtype_of(type_.element_type))


def kernel_argument(
    call: Sequence[object], param: ParamAttr, type_: Attribute
) -> Tensor:
    """Return the value that a kernel's parameter takes from the call's arguments."""
    source = call[param.source.data]
    if param.kind.data in (ParamKind.ARGUMENT, ParamKind.DESCRIPTOR):
        return as_value(source, type_)
    assert isinstance(source, Tensor)
    if param.kind.data == ParamKind.DIM:
        number = source.shape[param.dim.data]
    else:
        number = source.stride(param.dim.data) // param.unit.data
    return as_value(number, type_)
