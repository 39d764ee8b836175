"""The meaning of the tile ops of CPUs; buffers say where tiles live, never what."""

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
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class HostFunctions(InterpreterFunctions):
    """Strided memory, copies."""

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


def _index(shape: Sequence[int], dim: int) -> Tensor:
    """0, 1, ... along a dimension."""
    sizes = [shape[dim] if d == dim else 1 for d in range(len(shape))]
    return torch.arange(shape[dim]).view(sizes)


def strided(
    base: Tensor, place: Sequence[Tensor], shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Offsets of a tile's elements, and which lie within the extents.

    `place` is a stride for each dimension and then an extent for each.
    """
    offsets, inside = base, torch.ones((), dtype=torch.bool)
    rank = len(shape)
    for dim in range(rank):
        index = _index(shape, dim)
        offsets = offsets + index * place[dim]
        inside = inside & (index < place[rank + dim])
    return offsets, inside
