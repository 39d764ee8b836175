"""Interpreter of the `tile` dialect; a tile is a tensor of its shape and dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import tile
from flexc.dialects.tile.types import ReduceKind
from flexc.runtime.interpreters.memory import (
    add_tile,
    add_to_storage,
    in_sequence,
    load_some,
    load_tile,
    read_diagonals,
    read_storage,
    store_tile,
    write_storage,
)
from flexc.runtime.interpreters.schedule import at_switch, read_operand
from flexc.runtime.interpreters.values import dense_array, dtype_of

PROGRAM = "program"
"""The key of the interpreter's data for the position of the running program."""

Broadcast = Callable[[Tensor], Tensor]


def await_progress(
    progress: Tensor, program: Tensor, least: Tensor, known: Tensor
) -> Tensor:
    """Return the progress of a program that has ended, unless it is known to suffice.

    Programs run one after another, in the order in which they are launched. Raise
    InterpretationError if the progress is too little.
    """
    if known >= least:
        return known
    if progress[program] < least:
        raise InterpretationError(
            f"expected program {int(program)} to reach {int(least)} before this one, "
            f"got {int(progress[program])}: a deadlock"
        )
    return progress[program].clone()


def report_progress(progress: Tensor, program: Tensor, number: Tensor) -> None:
    """Set the progress of a program."""
    progress[program] = number


class ProgramEnd(Exception):
    """A program that ends before the end of its kernel: no error."""


@register_impls
class TileFunctions(InterpreterFunctions):
    """The interpreter of a kernel's ops, except control flow and scalar code."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype
        self.broadcasts: dict[tile.MapOp, list[Broadcast]] = {}

    @impl_terminator(tile.ReturnOp)
    def run_return(
        self, interpreter: Interpreter, op: tile.ReturnOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(()), ()

    @impl(tile.ReturnUnlessOp)
    def run_return_unless(
        self, interpreter: Interpreter, op: tile.ReturnUnlessOp, args: PythonValues
    ) -> PythonValues:
        if not args[0]:
            raise ProgramEnd
        return ()

    @impl(tile.AwaitKernelsOp)
    def run_await_kernels(
        self, interpreter: Interpreter, op: tile.AwaitKernelsOp, args: PythonValues
    ) -> PythonValues:
        return ()

    @impl(tile.ProgramIdOp)
    def run_program_id(
        self, interpreter: Interpreter, op: tile.ProgramIdOp, args: PythonValues
    ) -> PythonValues:
        position = interpreter.get_data(TileFunctions, PROGRAM, lambda: (0, 0, 0))
        return (torch.tensor(position[op.axis.value.data], dtype=torch.int32),)

    @impl(tile.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: tile.DimOp, args: PythonValues
    ) -> PythonValues:
        size = args[0].shape[op.dim.value.data]
        return (torch.tensor(size, dtype=dtype_of(op.result.type)),)

    @impl(tile.StrideOp)
    def run_stride(
        self, interpreter: Interpreter, op: tile.StrideOp, args: PythonValues
    ) -> PythonValues:
        stride = args[0].stride(op.dim.value.data)
        return (torch.tensor(stride, dtype=dtype_of(op.result.type)),)

    @impl(tile.IotaOp)
    def run_iota(
        self, interpreter: Interpreter, op: tile.IotaOp, args: PythonValues
    ) -> PythonValues:
        (size,) = tile.shape_of(op.result.type)
        return (args[0] + torch.arange(size, dtype=torch.int32),)

    @impl(tile.FullOp)
    def run_full(
        self, interpreter: Interpreter, op: tile.FullOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].expand(tile.shape_of(op.result.type)),)

    @impl(tile.LoadOp)
    def run_load(
        self, interpreter: Interpreter, op: tile.LoadOp, args: PythonValues
    ) -> PythonValues:
        shape, checked = tile.shape_of(op.result.type), dense_array(op.checked)
        tensor, *indices = args
        live = None if op.live is None else indices.pop()
        if op.pages is not None:
            tensor = in_sequence(tensor, indices.pop())
        dtype = dtype_of(tile.element_of(op.result.type))
        if op.count is None:
            found = load_tile(tensor, indices, shape, checked).to(dtype)
            if live is not None:
                dead = ~live.view(-1, *(1,) * (found.dim() - 1))
                found = found.masked_fill(dead, 0)
            return (found,)
        *indices, count = indices
        return (load_some(tensor, indices, shape, checked, int(count), dtype),)

    @impl(tile.StoreOp)
    def run_store(
        self, interpreter: Interpreter, op: tile.StoreOp, args: PythonValues
    ) -> PythonValues:
        value, memref, *indices = args
        below = None if op.below is None else int(indices.pop())
        if op.count is not None:
            value = value[..., : int(indices.pop())]
        if below is not None:
            memref = memref.narrow(len(indices) - value.dim(), 0, below)
        store_tile(value, memref, indices, dense_array(op.checked))
        return ()

    @impl(tile.GatherOp)
    def run_gather(
        self, interpreter: Interpreter, op: tile.GatherOp, args: PythonValues
    ) -> PythonValues:
        tensor, base, offsets, *mask = args
        offsets = base + offsets.to(torch.int64)
        return (read_storage(tensor, offsets, mask[0] if mask else None),)

    @impl(tile.ReadDiagonalsOp)
    def run_read_diagonals(
        self, interpreter: Interpreter, op: tile.ReadDiagonalsOp, args: PythonValues
    ) -> PythonValues:
        tensor, first, *counts = args
        shape, step = tile.shape_of(op.result.type), op.step.value.data
        rows = None if op.rows is None else counts.pop(0)
        columns = counts.pop(0) if counts else None
        dtype = dtype_of(tile.element_of(op.result.type))
        return (read_diagonals(tensor, first, step, shape, dtype, rows, columns),)

    @impl(tile.ScatterOp)
    def run_scatter(
        self, interpreter: Interpreter, op: tile.ScatterOp, args: PythonValues
    ) -> PythonValues:
        value, memref, base, offsets, *mask = args
        offsets = base + offsets.to(torch.int64)
        write_storage(memref, offsets, mask[0] if mask else None, value)
        return ()

    @impl(tile.AddToOp)
    def run_add_to(
        self, interpreter: Interpreter, op: tile.AddToOp, args: PythonValues
    ) -> PythonValues:
        value, memref, *indices = args
        turn: list[Tensor] = []
        if op.progress is not None:
            *indices, progress, earlier, least, own, done = indices
            await_progress(progress, earlier, least, torch.zeros_like(least))
            turn = [progress, own, done]
        if op.count is not None:
            value = value[: int(indices.pop())]
        at_switch(interpreter)
        add_tile(value, memref, indices, op.checked.get_values())
        if turn:
            report_progress(*turn)
        return ()

    @impl(tile.AwaitProgressOp)
    def run_await_progress(
        self, interpreter: Interpreter, op: tile.AwaitProgressOp, args: PythonValues
    ) -> PythonValues:
        at_switch(interpreter)
        return (await_progress(*args),)

    @impl(tile.ReportProgressOp)
    def run_report_progress(
        self, interpreter: Interpreter, op: tile.ReportProgressOp, args: PythonValues
    ) -> PythonValues:
        at_switch(interpreter).current.check_written()
        report_progress(*args)
        return ()

    @impl(tile.ScatterAddOp)
    def run_scatter_add(
        self, interpreter: Interpreter, op: tile.ScatterAddOp, args: PythonValues
    ) -> PythonValues:
        value, memref, base, offsets, *mask = args
        offsets = base + offsets.to(torch.int64)
        add_to_storage(memref, offsets, value, mask[0] if mask else None)
        return ()

    @impl(tile.MapOp)
    def run_map(
        self, interpreter: Interpreter, op: tile.MapOp, args: PythonValues
    ) -> PythonValues:
        broadcasts = self.broadcasts.get(op)
        if broadcasts is None:
            rank = len(op.shape)
            broadcasts = [broadcast(op.span(i), rank) for i in range(len(args))]
            self.broadcasts[op] = broadcasts
        values = tuple(f(a) for f, a in zip(broadcasts, args, strict=True))
        results = interpreter.run_ssacfg_region(op.body, values, "map")
        return tuple(r.expand(op.shape) for r in results)

    @impl(tile.ReduceOp)
    def run_reduce(
        self, interpreter: Interpreter, op: tile.ReduceOp, args: PythonValues
    ) -> PythonValues:
        value, *count = args
        dim = op.dim.value.data
        if count:
            value = value.narrow(dim, 0, int(count[0]))
        return (reduced(op.kind.data, value, dim),)

    @impl(tile.KeepColumnsOp)
    def run_keep_columns(
        self, interpreter: Interpreter, op: tile.KeepColumnsOp, args: PythonValues
    ) -> PythonValues:
        value, first, end = args
        column = torch.arange(value.shape[1])
        kept = (first[:, None] <= column) & (column < end[:, None])
        return (value.where(kept, op.other.value.data),)

    @impl(tile.PartialSumsOp)
    def run_partial_sums(
        self, interpreter: Interpreter, op: tile.PartialSumsOp, args: PythonValues
    ) -> PythonValues:
        rows, columns = tile.shape_of(op.result.type)
        return (args[0].reshape(rows, -1, columns).sum(1),)

    @impl(tile.PackPairsOp)
    def run_pack_pairs(
        self, interpreter: Interpreter, op: tile.PackPairsOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].contiguous().view(torch.int32),)

    @impl(tile.UnpackPairsOp)
    def run_unpack_pairs(
        self, interpreter: Interpreter, op: tile.UnpackPairsOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].view(dtype_of(tile.element_of(op.result.type))),)

    @impl(tile.ScanOp)
    def run_scan(
        self, interpreter: Interpreter, op: tile.ScanOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].cumsum(1, dtype=args[0].dtype),)

    @impl(tile.LiveRangeOp)
    def run_live_range(
        self, interpreter: Interpreter, op: tile.LiveRangeOp, args: PythonValues
    ) -> PythonValues:
        flags, *count = args
        found = flags[: int(count[0])] if count else flags
        (live,) = found.nonzero(as_tuple=True)
        first, length = 0, 0
        if len(live):
            first, length = int(live[0]), int(live[-1]) - int(live[0]) + 1
        return tuple(torch.tensor(n, dtype=torch.int32) for n in (first, length))

    @impl(tile.DiagonalsOp)
    def run_diagonals(
        self, interpreter: Interpreter, op: tile.DiagonalsOp, args: PythonValues
    ) -> PythonValues:
        value, *count = args
        value = value.T if op.is_transposed else value
        rows, columns = value.shape
        sums = value.new_zeros(rows + columns)
        seen = value[:, : int(count[0])] if count else value
        for number in range(1, rows + columns):
            offset = columns - number
            if offset < seen.shape[1]:
                sums[number] = seen.diagonal(offset).sum(dtype=sums.dtype)
        return (sums,)

    @impl(tile.TransposeOp)
    def run_transpose(
        self, interpreter: Interpreter, op: tile.TransposeOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].permute(*reversed(range(args[0].dim()))),)

    @impl(tile.ConvertLayoutOp)
    def run_convert_layout(
        self, interpreter: Interpreter, op: tile.ConvertLayoutOp, args: PythonValues
    ) -> PythonValues:
        # Layouts assign elements to threads and do not change values.
        return args

    @impl(tile.DotOp)
    def run_dot(
        self, interpreter: Interpreter, op: tile.DotOp, args: PythonValues
    ) -> PythonValues:
        lhs, rhs = (read_operand(interpreter, a, "tile.dot's read") for a in args[:2])
        acc, *count = args[2:]
        if count:
            lhs, rhs = lhs[:, : int(count[0])], rhs[: int(count[0])]
        dtype = self.compute_dtype or acc.dtype
        product = lhs.to(dtype) @ rhs.to(dtype) + acc.to(dtype)
        return (product.to(acc.dtype),)


def reduced(kind: ReduceKind, value: Tensor, dim: int) -> Tensor:
    """Combine a tile along a dimension."""
    if kind == ReduceKind.MAX:
        return value.amax(dim)
    if kind == ReduceKind.MIN:
        return value.amin(dim)
    return value.sum(dim, dtype=value.dtype)


def broadcast(span: tuple[int, ...], rank: int) -> Broadcast:
    """Return a function that broadcasts an operand of `tile.map` to `rank` axes."""
    if not span or span == tuple(range(rank)):
        return lambda value: value
    order = sorted(range(len(span)), key=lambda i: span[i])
    index = tuple(slice(None) if d in span else None for d in range(rank))
    return lambda value: value.permute(order)[index]
