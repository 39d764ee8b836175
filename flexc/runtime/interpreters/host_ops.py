"""Interpreter of kernels' launches, and of the host code of derivatives.

A launch finds a kernel's arguments, grid and outputs. Host code launches kernels and
computes with their results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, MemRefType, StringAttr
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import flex
from flexc.dialects.flex import Coordinates, SumKind, diagonal_entries, diagonal_zero
from flexc.dialects.tile import GRID_OF, KernelOp, ParamAttr, ParamKind
from flexc.runtime.interpreters.schedule import program
from flexc.runtime.interpreters.tile import PROGRAM, ProgramEnd, TileFunctions
from flexc.runtime.interpreters.values import as_value, dense_array, dtype_of

KEY_HEADS = "key_heads"
"""The key of the interpreter's data for the batches and heads of the attention keys."""

PARTS = 3
"""The number of parts in which kernels compute sums by column."""

SIZES = "sizes"
"""The key of the interpreter's data for (B, Hq, Sq, Skv) of a derivative."""

Sizes = tuple[int, int, int, int]


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
    """Run the programs one after another, in the order in which a GPU starts them."""
    grid = grid_of(kernel, call)
    values = tuple(
        kernel_argument(call, param, arg.type, grid)
        for param, arg in zip(kernel.params, kernel.body.block.args, strict=True)
    )
    for position in product(*(range(n) for n in reversed(grid))):
        padded = (*reversed(position), *(0 for _ in range(3 - len(position))))
        interpreter.set_data(TileFunctions, PROGRAM, padded)
        with program(interpreter), suppress(ProgramEnd):
            interpreter.run_ssacfg_region(kernel.body, values, "kernel")


def grid_of(kernel: KernelOp, call: Sequence[object]) -> tuple[int, ...]:
    """Return the sizes of the grid for a call's arguments (see `GRID_OF`)."""
    known = kernel.attributes.get(GRID_OF)
    numbers = dense_array(known) if isinstance(known, DenseArrayBase) else (0,) * 3
    sizes: list[int] = []
    for dim, number in enumerate(numbers):
        given = call[number]
        if not isinstance(given, Tensor):
            raise InterpretationError(f"expected argument {number} to be a tensor")
        sizes.append(given.shape[dim])
    return kernel.grid.data.eval(sizes, [])


def written_types(kernel: KernelOp) -> dict[int, MemRefType]:
    """Return the positions and types of the call's arguments that a kernel writes."""
    pairs = zip(kernel.params, kernel.body.block.args, strict=True)
    written = {
        p.source.data: a.type
        for p, a in pairs
        if isinstance(a.type, MemRefType) and p.kind.data != ParamKind.PROGRESS
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
    call: Sequence[object],
    param: ParamAttr,
    type_: Attribute,
    grid: Sequence[int],
) -> Tensor:
    """Return the value that a kernel's parameter takes from the call's arguments."""
    if param.kind.data == ParamKind.PROGRESS:
        return torch.zeros(prod(grid), dtype=torch.int32)
    source = call[param.source.data]
    if param.kind.data in (ParamKind.ARGUMENT, ParamKind.DESCRIPTOR):
        return as_value(source, type_)
    assert isinstance(source, Tensor)
    if param.kind.data == ParamKind.DIM:
        number = source.shape[param.dim.data]
    else:
        number = source.stride(param.dim.data) // param.unit.data
    return as_value(number, type_)


@register_impls
class HostFunctions(InterpreterFunctions):
    """The interpreter of launches, and of ops on the sums that launches return."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(flex.LaunchOp)
    def run_launch(
        self, interpreter: Interpreter, op: flex.LaunchOp, args: PythonValues
    ) -> PythonValues:
        callee = interpreter.get_op_for_symbol(op.callee)
        args, plus = args[: len(op.inputs)], args[len(op.inputs) :]
        if isinstance(callee, func.FuncOp):
            outputs = list(interpreter.call_op(callee, args))
        else:
            assert isinstance(callee, KernelOp)
            sizes, keys = sizes_of(interpreter), key_heads_of(interpreter)
            outputs = kernel_outputs(callee, args, sizes, keys)
            run_programs(interpreter, callee, [*args, *outputs])
        for i, value in enumerate(plus, len(outputs) - len(plus)):
            outputs[i] = outputs[i] + value
        return tuple(outputs)

    @impl(flex.ScatterSumsOp)
    def run_scatter_sums(
        self, interpreter: Interpreter, op: flex.ScatterSumsOp, args: PythonValues
    ) -> PythonValues:
        sums, target, *rest = args
        n = len(op.captures)
        sums = sums.to(self.compute_dtype or sums.dtype)
        pairs = pair_indices(sizes_of(interpreter))
        read = interpreter.run_ssacfg_region(op.index, (*pairs, *rest[:n]), "index")
        gradient = sums.new_zeros(target.shape)
        for before in rest[n:]:
            gradient = gradient + before
        scatter = Scatter(op.coordinates, sizes_of(interpreter))
        scatter.add(gradient, sums, [i.to(torch.int64) for i in read])
        return (gradient.to(target.dtype),)

    @impl(flex.CenterRowsOp)
    def run_center_rows(
        self, interpreter: Interpreter, op: flex.CenterRowsOp, args: PythonValues
    ) -> PythonValues:
        sums, total, values = args
        dtype = self.compute_dtype or sums.dtype
        moved = total.to(dtype)[..., None] * values.to(dtype)
        return ((sums.to(dtype) - moved).to(values.dtype),)

    @impl(flex.SumPartsOp)
    def run_sum_parts(
        self, interpreter: Interpreter, op: flex.SumPartsOp, args: PythonValues
    ) -> PythonValues:
        parts = args[0].to(self.compute_dtype or args[0].dtype)
        return (parts.sum(0).to(dtype_of(flex.element_type(op.result))),)

    @impl(flex.ZerosLikeOp)
    def run_zeros_like(
        self, interpreter: Interpreter, op: flex.ZerosLikeOp, args: PythonValues
    ) -> PythonValues:
        return (torch.zeros_like(args[0]),)


def remember_sizes(interpreter: Interpreter, args: Sequence[object]) -> None:
    """Store the sizes of the query and key of a derivative's function."""
    query, key = args[:2]
    if isinstance(query, Tensor) and isinstance(key, Tensor):
        sizes = (*query.shape[:3], key.shape[2])
        interpreter.set_data(HostFunctions, SIZES, sizes)
        interpreter.set_data(HostFunctions, KEY_HEADS, tuple(key.shape[:2]))


def missing() -> Sizes:
    raise InterpretationError("expected to run in a function of query and key")


def sizes_of(interpreter: Interpreter) -> Sizes:
    return interpreter.get_data(HostFunctions, SIZES, missing)


def key_heads_of(interpreter: Interpreter) -> tuple[int, int]:
    return interpreter.get_data(HostFunctions, KEY_HEADS, missing)


def kernel_outputs(
    kernel: KernelOp, args: Sequence[Tensor], sizes: Sizes, key_heads: tuple[int, int]
) -> list[Tensor]:
    """Allocate a kernel's results.

    Elements that programs may leave unwritten are 0. All other elements are NaN, so
    that a missing write is visible.
    """
    rows = args[0].shape
    types = list(written_types(kernel).values())
    kinds = kinds_of(kernel, types)
    by_query = is_by_query(kernel)
    in_parts = SumKind.COLUMN_MATRIX in kinds and by_query
    number = PARTS if in_parts else grid_of(kernel, args)[0]
    shapes = {
        SumKind.TOTAL: (*sizes[:2], rows[2]),
        SumKind.DIAGONAL: diagonal_shape(number, sizes),
        SumKind.PAIRS: (*sizes[:2], rows[2], sizes[3 if by_query else 2]),
    }
    columns = (PARTS, *key_heads, sizes[3]) if in_parts else sizes[:3]
    stored = [SumKind.TOTAL]
    if "per_query_head" not in kernel.attributes:
        stored.append(SumKind.MATRIX)
    outputs: list[Tensor] = []
    for kind, type_ in zip(kinds, types, strict=True):
        dtype = dtype_of(type_.element_type)
        above = columns if kind == SumKind.COLUMN_MATRIX else rows[:3]
        shape = shapes.get(kind, (*above, type_.get_shape()[-1]))
        fill = torch.nan if kind in stored else 0.0
        outputs.append(torch.full(shape, fill, dtype=dtype))
    return outputs


def kinds_of(kernel: KernelOp, types: Sequence[MemRefType]) -> list[SumKind]:
    """Return the kinds of a kernel's results.

    A kernel without kinds computes rows of numbers or vectors.
    """
    said = kernel.attributes.get("sums")
    if isinstance(said, StringAttr):
        return [SumKind(n) for n in re.findall(r"flex\.sum<(\w+)", said.data)]
    ranks = [t.get_num_dims() for t in types]
    return [SumKind.TOTAL if rank == 3 else SumKind.MATRIX for rank in ranks]


def is_by_query(kernel: KernelOp) -> bool:
    return kernel.attributes.get("rows") != StringAttr("keys")


def diagonal_shape(blocks: int, sizes: Sizes) -> tuple[int, ...]:
    return (*sizes[:2], blocks, diagonal_entries(*sizes[2:]))


def pair_indices(sizes: Sizes) -> list[Tensor]:
    """Return b, h, q_idx and kv_idx of all pairs."""
    grids = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
    return [g.to(torch.int32) for g in grids]


@dataclass(frozen=True)
class Scatter:
    """An addition of sums to the elements of a gradient that the pairs of a sum read.

    `add` takes the indices of all pairs. All pairs of one sum must have equal indices.
    """

    by: Coordinates
    sizes: Sizes

    def add(self, gradient: Tensor, sums: Tensor, indices: list[Tensor]) -> None:
        places = self.places()
        if self.by == Coordinates.DISTANCE:
            sums = sums.sum(2)
        flat = sums.flatten(2)
        inside = self.used(flat, places)
        one_of: list[Tensor] = []
        for index, size in zip(indices, gradient.shape, strict=True):
            index = self.one_of_each(index.expand(self.sizes), places, flat)
            inside = inside & (index >= 0) & (index < size)
            one_of.append(index)
        if not one_of:
            gradient += flat.sum()
            return
        found = tuple(index[inside] for index in one_of)
        gradient.index_put_(found, flat[inside], accumulate=True)

    def places(self) -> Tensor:
        """Return the number of the sum, within its head, that each pair belongs to."""
        kv_len = self.sizes[3]
        q_idx, kv_idx = (i.to(torch.int64) for i in pair_indices(self.sizes)[2:])
        match self.by:
            case Coordinates.HEAD | Coordinates.ROW:
                return q_idx
            case Coordinates.COLUMN:
                return kv_idx
            case Coordinates.DISTANCE:
                return q_idx - kv_idx + diagonal_zero(kv_len)
            case Coordinates.PAIR:
                return q_idx * kv_len + kv_idx

    def used(self, sums: Tensor, places: Tensor) -> Tensor:
        """Return which sums have pairs.

        Raise InterpretationError if another sum is not 0.
        """
        used = torch.zeros(sums.shape, dtype=torch.bool)
        used.scatter_(-1, places.flatten(2), True)
        if (sums[~used] != 0).any():
            raise InterpretationError("expected sums of no pair to be 0")
        return used

    def one_of_each(self, index: Tensor, places: Tensor, sums: Tensor) -> Tensor:
        """Return the index that all pairs of each sum share.

        Raise InterpretationError if the pairs of a sum have different indices.
        """
        found = torch.zeros(sums.shape, dtype=torch.int64)
        found.scatter_(-1, places.flatten(2), index.flatten(2))
        same = found.gather(-1, places.flatten(2)) == index.flatten(2)
        if self.by == Coordinates.HEAD:
            same = same & (index == index[:, :, :1, :1]).flatten(2)
        if not same.all():
            raise InterpretationError(
                f"expected the same index wherever sums are by {self.by.value}"
            )
        return found
