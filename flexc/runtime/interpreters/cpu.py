"""Interpreter of the tile ops of CPUs.

Buffers determine where tiles live and do not change values. Elements beyond the count
of an op are not computed, and hold values that reveal any use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)

from flexc.dialects import tile
from flexc.runtime.interpreters.memory import (
    add_to_storage,
    read_storage,
    unspecified,
    write_storage,
)
from flexc.runtime.interpreters.tile import broadcast, reduced
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class CpuFunctions(InterpreterFunctions):
    """The interpreter of strided memory, copies, products and maps of panels."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(tile.LoadStridedOp)
    def run_load(
        self, interpreter: Interpreter, op: tile.LoadStridedOp, args: PythonValues
    ) -> PythonValues:
        tensor, base, *place = args
        shape = tile.shape_of(op.result.type)
        offsets, inside = strided(base, place, shape)
        dtype = dtype_of(tile.element_of(op.result.type))
        value = read_storage(tensor, offsets, inside).to(dtype)
        if (dim := op.counted_dim) is not None:
            given = _index(shape, dim) < place[len(shape) + dim]
            value = torch.where(given, value, unspecified(shape, dtype))
        return (value,)

    @impl(tile.CollectOp)
    def run_collect(
        self, interpreter: Interpreter, op: tile.CollectOp, args: PythonValues
    ) -> PythonValues:
        given = dict(zip(op.operands, args, strict=True))
        most, columns = op.rows.type.get_shape()
        count, pages = int(given[op.count]), int(given[op.num_pages])
        row = given[op.start] + torch.arange(count)
        entries = given[op.entries] + row // op.page_size
        page = read_storage(given[op.table], entries, None).clamp(0, pages - 1)
        steps = [given[s] for s in op.strides]
        first = given[op.base] + page * steps[0] + row % op.page_size * steps[1]
        offsets = first[:, None] + torch.arange(columns) * steps[2]
        rows = unspecified((most, columns), given[op.tensor].dtype)
        rows[:count] = read_storage(given[op.tensor], offsets, None)
        return rows, torch.tensor(columns)

    @impl(tile.NearRowsOp)
    def run_near_rows(
        self, interpreter: Interpreter, op: tile.NearRowsOp, args: PythonValues
    ) -> PythonValues:
        tensor, head, start, stride, count = args
        most, columns = op.rows.type.get_shape()
        first = head + (start + torch.arange(int(count))) * stride
        rows = unspecified((most, columns), tensor.dtype)
        rows[: int(count)] = read_storage(
            tensor, first[:, None] + torch.arange(columns), None
        )
        return rows, torch.tensor(columns)

    @impl(tile.StoreStridedOp)
    def run_store(
        self, interpreter: Interpreter, op: tile.StoreStridedOp, args: PythonValues
    ) -> PythonValues:
        value, memref, base, *place = args
        offsets, inside = strided(base, place, value.shape)
        write_storage(memref, offsets, inside, value.to(memref.dtype))
        return ()

    @impl(tile.AddStridedOp)
    def run_add(
        self, interpreter: Interpreter, op: tile.AddStridedOp, args: PythonValues
    ) -> PythonValues:
        value, memref, base, *strides = args
        if op.count is not None:
            value = value[: int(strides.pop())]
        offsets, _ = strided(base, [*strides, *value.shape], value.shape)
        add_to_storage(memref, offsets, value)
        return ()

    @impl(tile.CopyOp)
    def run_copy(
        self, interpreter: Interpreter, op: tile.CopyOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(tile.PackOp)
    def run_pack(
        self, interpreter: Interpreter, op: tile.PackOp, args: PythonValues
    ) -> PythonValues:
        value, *count = args
        rounded = value.to(dtype_of(tile.element_of(op.result.type)))
        some = rounded[: int(count[0])] if count else rounded
        return (_paired(some, len(value)),)

    @impl(tile.RegisterProductOp)
    def run_product(
        self, interpreter: Interpreter, op: tile.RegisterProductOp, args: PythonValues
    ) -> PythonValues:
        given = dict(zip(op.operands, args, strict=True))
        m, k = tile.shape_of(op.result.type)[0], tile.shape_of(op.rhs.type)[0]
        rows = m if op.rows is None else int(given[op.rows])
        inner = k if op.inner is None else int(given[op.inner])
        lhs = given[op.lhs]
        if op.base is not None:
            strides = [given[s] for s in op.strides]
            place = [*strides, torch.tensor(rows), torch.tensor(inner)]
            lhs = read_storage(lhs, *strided(given[op.base], place, (rows, inner)))
        result_dtype = dtype_of(tile.element_of(op.result.type))
        dtype = self.compute_dtype or result_dtype
        lhs, rhs = lhs[:rows, :inner].to(dtype), given[op.rhs][:inner].to(dtype)
        product = lhs @ rhs
        if op.acc is not None:
            product = product + given[op.acc][:rows].to(dtype)
        return (_padded(product.to(result_dtype), m),)

    @impl(tile.AddRegisterProductOp)
    def run_add_product(
        self,
        interpreter: Interpreter,
        op: tile.AddRegisterProductOp,
        args: PythonValues,
    ) -> PythonValues:
        given = dict(zip(op.operands, args, strict=True))
        m, k = tile.shape_of(op.lhs.type)
        rows = m if op.rows is None else int(given[op.rows])
        inner = k if op.inner is None else int(given[op.inner])
        memref, one = given[op.memref], torch.ones((), dtype=torch.int64)
        dtype = self.compute_dtype or memref.dtype
        lhs, rhs = given[op.lhs][:rows, :inner], given[op.rhs][:inner]
        product = (lhs.to(dtype) @ rhs.to(dtype)).to(memref.dtype)
        place = [given[op.stride], one, *product.shape]
        offsets, _ = strided(given[op.base], place, product.shape)
        add_to_storage(memref, offsets, product)
        return ()

    @impl(tile.StreamProductOp)
    def run_stream(
        self, interpreter: Interpreter, op: tile.StreamProductOp, args: PythonValues
    ) -> PythonValues:
        given = dict(zip(op.operands, args, strict=True))
        count, size = int(given[op.count]), op.row_size
        place = [given[op.stride], *map(torch.tensor, (1, count, size))]
        where = strided(given[op.base], place, (count, size))
        result_dtype = dtype_of(tile.element_of(op.result.type))
        dtype = self.compute_dtype or result_dtype
        rows = read_storage(given[op.rhs], *where).to(dtype)
        lhs = given[op.lhs].to(dtype)
        if op.transposed is not None:
            dots = (lhs @ rows.mT).to(result_dtype)
            return (_padded(dots.mT, op.most_rows).mT,)
        product = lhs[:, :count] @ rows
        if op.acc is not None:
            product = product + given[op.acc].to(dtype)
        return (product.to(result_dtype),)

    @impl(tile.PanelMapOp)
    def run_map(
        self, interpreter: Interpreter, op: tile.PanelMapOp, args: PythonValues
    ) -> PythonValues:
        values = list(args)
        count = op.shape[0] if op.count is None else int(values.pop(0))
        shape = (count, op.shape[1])
        inputs: list[Tensor] = []
        for i, value in enumerate(values):
            span = op.span(i)
            some = value[:count] if span and span[0] == 0 else value
            inputs.append(broadcast(span, 2)(some))
        found = interpreter.run_ssacfg_region(op.body, tuple(inputs), "panel_map")
        results: list[Tensor] = []
        for i, value in enumerate(found):
            kind, whole = op.outcome(i), value.expand(shape)
            if kind is not None:
                results.append(reduced(kind, whole, 0))
            elif op.is_packed(i):
                results.append(_paired(whole.bfloat16(), op.shape[0]))
            else:
                results.append(_padded(whole, op.shape[0]))
        return tuple(results)


def _index(shape: Sequence[int], dim: int) -> Tensor:
    """Return 0, 1, ... along a dimension."""
    sizes = [shape[dim] if d == dim else 1 for d in range(len(shape))]
    return torch.arange(shape[dim]).view(sizes)


def strided(
    base: Tensor, place: Sequence[Tensor], shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the offsets of a tile's elements, and flags of those within the extents.

    `place` has one stride for each dimension, then one extent for each dimension.
    """
    offsets, inside = base, torch.ones((), dtype=torch.bool)
    rank = len(shape)
    for dim in range(rank):
        index = _index(shape, dim)
        offsets = offsets + index * place[dim]
        inside = inside & (index < place[rank + dim])
    return offsets, inside


def _paired(some: Tensor, rows: int) -> Tensor:
    """Extend rows to a tile of pairs; after an odd number there is a row of zeros."""
    if len(some) % 2:
        some = torch.cat([some, torch.zeros_like(some[:1])])
    return _padded(some, rows)


def _padded(some: Tensor, rows: int) -> Tensor:
    """Extend rows to a tile of `rows` rows; values in other rows reveal any use."""
    if len(some) == rows:
        return some
    result = unspecified([rows, *some.shape[1:]], some.dtype)
    result[: len(some)] = some
    return result
