"""The GPU kernel that turns classes of blocks into torch's tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.kernels.kernel import launch
from flexc.runtime.kernels.triton_compiler import Entry, TritonSource
from flexc.runtime.kernels.triton_loader import OnGrid, prepare
from flexc.runtime.process.background import Background
from flexc.runtime.process.recent import Recent
from flexc.runtime.tapes.tape import Prepared

TILES = {"ROWS": 4, "ROW_ENTRIES": 256, "COLUMNS": 8, "COLUMN_ENTRIES": 128}
"""The tiles of a program, in lines by entries.

ROWS and ROW_ENTRIES are used where lines are rows of blocks: neighbours in memory lie
along the second dimension. COLUMNS and COLUMN_ENTRIES are used where lines are columns:
neighbours in memory lie along the first dimension.
"""


@triton.jit
def _kinds(classes, lines, entries, last_line, last_entry, pitch, BY_ROW: tl.constexpr):
    """Return flags of blocks: partial or unknown, full, and in range."""
    if BY_ROW:
        offsets = lines[:, None].to(tl.int64) * pitch + entries[None, :]
    else:
        offsets = entries[None, :].to(tl.int64) * pitch + lines[:, None]
    inside = (lines < last_line)[:, None] & (entries < last_entry)[None, :]
    kind = tl.load(classes + offsets, mask=inside, other=0)
    return ((kind == 1) | (kind == 3)).to(tl.int32), (kind == 2).to(tl.int32), inside


@triton.jit
def _place(indices, entries, kind, seen, total, inside, rows):
    """Write each index to its place in a table.

    Live indices come first, then dead ones, both in ascending order. Return the number
    of live indices of each line up to here.
    """
    before = seen[:, None] + tl.cumsum(kind, 1) - kind
    dead = total[:, None] + entries[None, :] - before
    place = tl.where(kind != 0, before, dead)
    value = tl.broadcast_to(entries[None, :], place.shape)
    tl.store(indices + rows[:, None] + place, value, mask=inside)
    return seen + tl.sum(kind, 1)


@triton.jit
def _order(
    classes,
    partial_counts,
    partial_indices,
    full_counts,
    full_indices,
    program,
    size_lines,
    size_entries,
    pitch,
    LINES: tl.constexpr,
    ENTRIES: tl.constexpr,
    BY_ROW: tl.constexpr,
):
    """Process one tile of lines: count the live blocks, then place all indices."""
    which = tl.program_id(1).to(tl.int64)
    line = program * LINES + tl.arange(0, LINES)
    entry = tl.arange(0, ENTRIES)
    classes += which * size_lines * size_entries
    partial = tl.zeros([LINES], tl.int32)
    full = tl.zeros([LINES], tl.int32)
    for first in range(0, size_entries, ENTRIES):
        p, f, _ = _kinds(
            classes, line, first + entry, size_lines, size_entries, pitch, BY_ROW
        )
        partial += tl.sum(p, 1)
        full += tl.sum(f, 1)
    where = which * size_lines + line
    tl.store(partial_counts + where, partial, mask=line < size_lines)
    tl.store(full_counts + where, full, mask=line < size_lines)
    rows = where * size_entries
    partial_seen = tl.zeros([LINES], tl.int32)
    full_seen = tl.zeros([LINES], tl.int32)
    for first in range(0, size_entries, ENTRIES):
        n = first + entry
        p, f, inside = _kinds(classes, line, n, size_lines, size_entries, pitch, BY_ROW)
        partial_seen = _place(
            partial_indices, n, p, partial_seen, partial, inside, rows
        )
        full_seen = _place(full_indices, n, f, full_seen, full, inside, rows)


@triton.jit(
    do_not_specialize=["row_programs", "size_rows", "size_columns"],
    do_not_specialize_on_alignment=[
        "classes",
        "row_counts",
        "row_indices",
        "full_row_counts",
        "full_row_indices",
        "column_counts",
        "column_indices",
        "full_column_counts",
        "full_column_indices",
    ],
)
def order(
    classes,
    row_counts,
    row_indices,
    full_row_counts,
    full_row_indices,
    column_counts,
    column_indices,
    full_column_counts,
    full_column_indices,
    row_programs,
    size_rows,
    size_columns,
    ROWS: tl.constexpr,
    ROW_ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLUMN_ENTRIES: tl.constexpr,
):
    """Order the rows of blocks, and the columns if the grid has programs for them."""
    program = tl.program_id(0)
    if program < row_programs:
        _order(
            classes,
            row_counts,
            row_indices,
            full_row_counts,
            full_row_indices,
            program,
            size_rows,
            size_columns,
            size_columns,
            ROWS,
            ROW_ENTRIES,
            tl.constexpr(True),
        )
    else:
        _order(
            classes,
            column_counts,
            column_indices,
            full_column_counts,
            full_column_indices,
            program - row_programs,
            size_columns,
            size_rows,
            size_columns,
            COLUMNS,
            COLUMN_ENTRIES,
            tl.constexpr(False),
        )


def order_grid(shape: Sequence[int], both: bool) -> tuple[int, int, int]:
    """Return the grid for classes of a shape, for rows or for rows and columns."""
    batches, heads, rows, columns = shape
    programs = triton.cdiv(rows, TILES["ROWS"])
    if both:
        programs += triton.cdiv(columns, TILES["COLUMNS"])
    return programs, batches * heads, 1


def order_values(classes: Tensor, tables: Sequence[Tensor]) -> list[Any]:
    """Return the kernel's arguments, constants last."""
    rows, columns = classes.shape[2:]
    numbers = (triton.cdiv(rows, TILES["ROWS"]), rows, columns)
    return [classes, *tables, *numbers, *TILES.values()]


def order_source() -> TritonSource:
    """Return the kernel's source for Triton, for any target."""
    names = order.arg_names
    pointers, numbers = ["*i8", *["*i32"] * 8], ["i32"] * 3
    types = [*pointers, *numbers, *["constexpr"] * len(TILES)]
    constants = {(names.index(name),): value for name, value in TILES.items()}
    return TritonSource(order, dict(zip(names, types, strict=True)), constants, {})


def compile_order(device: torch.device, entry: Entry | None = None) -> Any:
    """Compile the kernel for a device and load the kernel to the device."""
    source = order_source()
    with torch.cuda.device(device):
        kernel = None if entry is None else entry.load(source)
        if kernel is None:
            target = triton.runtime.driver.active.get_current_target()
            # Set explicitly, since Triton plans to change the default.
            options = {"enable_fp_fusion": True}
            kernel = triton.compile(source, target=target, options=options)
        assert kernel.run is not None  # Loads the kernel now.
    return kernel


class Order:
    """The kernel on each device that needs the kernel."""

    def __init__(self) -> None:
        self._on: Recent[Background[Any]] = Recent()

    def start(self, device: torch.device) -> None:
        """Start to compile the kernel for a device, unless the kernel is interpreted.

        This does nothing on AMD GPUs: there Triton's own launch compiles other kernels,
        and such compilations cannot be serialised with this one.
        """
        if device.type == "cuda" and not torch.version.hip and not is_interpreting():
            self._begin(device)

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared | None:
        device = args[0].device
        if device.type == "cpu" or is_interpreting():
            return None
        return prepare(self.on(device), grid, args)

    def launcher(
        self, device: torch.device, grid: tuple[int, ...], count: int, entry: Entry
    ) -> OnGrid:
        """Return a launcher of the kernel with `count` values on a grid of a device."""
        return OnGrid(self._begin(device, entry).get(), grid, count)

    def on(self, device: torch.device) -> Any:
        """Return the kernel, compiled for a device."""
        return self._begin(device).get()

    def _begin(
        self, device: torch.device, entry: Entry | None = None
    ) -> Background[Any]:
        make = partial(Background, partial(compile_order, device, entry))
        return self._on.get(device.index, make)

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        order[grid](*args)


ORDER = Order()


def launch_order(classes: Tensor, tables: Sequence[Tensor]) -> None:
    """Fill counts and indices of each row, partial blocks first, and of each column.

    The last four tables are for columns. With four tables only, columns are left out.
    """
    both = len(tables) == 8
    values = order_values(classes, tables if both else [*tables, *tables])
    launch(ORDER, order_grid(classes.shape, both), values)
