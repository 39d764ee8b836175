"""A kernel that reads one tile along diagonals, as emitted kernels do."""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from flexc.codegen.gluon.support import read_diagonals


@gluon.jit
def read_tile(
    table,
    out,
    first,
    rows,
    columns,
    STEP: gl.constexpr,
    COLUMNS: gl.constexpr,
    HAS_ROWS: gl.constexpr,
    HAS_COLUMNS: gl.constexpr,
):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    if not HAS_ROWS:
        rows = None
    if not HAS_COLUMNS:
        columns = None
    tile = read_diagonals(table, first, rows, columns, STEP, LAYOUT)
    row = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    gl.store(out + row[:, None] * COLUMNS + column[None, :], tile)
