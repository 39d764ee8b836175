"""Reading along the diagonals of a tile: functions that emitted kernels import."""

# pyright: basic
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.runtime.jit import constexpr_function

from flexc.codegen.gluon.diagonal_ptx import (
    MARGIN,
    load_code,
    load_constraints,
    spread_code,
    spread_constraints,
)


@constexpr_function
def warps_of(layout):
    """The warps that share the rows of a product, 16 rows each."""
    assert isinstance(layout, gl.NVMMADistributedLayout)
    rows, columns, _ = layout.instr_shape
    warps, across = layout.warps_per_cta
    assert layout.version == [3, 0] and rows == 16 and across == 1
    assert columns % 16 == 0
    return warps


@gluon.jit
def distances(LAYOUT: gl.constexpr):
    """row - column for the elements of a tile."""
    ROWS: gl.constexpr = 16 * warps_of(LAYOUT)
    COLUMNS: gl.constexpr = LAYOUT.instr_shape[1]
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] - columns[None, :]


@gluon.jit
def addresses(tensor, first, distance, STEP: gl.constexpr):
    """Where elements are, MARGIN elements too far: below that, offsets are negative."""
    offsets = first + STEP * distance + MARGIN
    if first.dtype == gl.int32:
        offsets = offsets.to(gl.uint32)
    return tensor + offsets.to(gl.int64)


@gluon.jit
def load(
    tensor, first, distance, STEP: gl.constexpr, KIND: gl.constexpr, DTYPE: gl.constexpr
):
    """What a thread's elements are made of."""
    COUNT: gl.constexpr = distance.shape[1] // 2
    CODE: gl.constexpr = load_code(KIND, COUNT, STEP, False)
    CONSTRAINTS: gl.constexpr = load_constraints(KIND, COUNT, False)
    return gl.inline_asm_elementwise(
        CODE,
        CONSTRAINTS,
        [addresses(tensor, first, distance, STEP)],
        dtype=DTYPE.value,
        is_pure=True,
        pack=COUNT,
    )


@gluon.jit
def load_within(
    tensor,
    first,
    distance,
    low,
    high,
    STEP: gl.constexpr,
    KIND: gl.constexpr,
    DTYPE: gl.constexpr,
):
    """The same, and 0 where row - column is not from low to high."""
    ROWS: gl.constexpr = distance.shape[0]
    COLUMNS: gl.constexpr = distance.shape[1]
    COUNT: gl.constexpr = COLUMNS // 2
    if (low <= 1 - COLUMNS) & (high >= ROWS - 1):
        loaded = load(tensor, first, distance, STEP, KIND, DTYPE)
    else:
        low = gl.maximum(low, 1 - COLUMNS)
        above = distance - low
        size = gl.maximum(gl.minimum(high, ROWS - 1) - low + 1, 0)
        CODE: gl.constexpr = load_code(KIND, COUNT, STEP, True)
        CONSTRAINTS: gl.constexpr = load_constraints(KIND, COUNT, True)
        loaded = gl.inline_asm_elementwise(
            CODE,
            CONSTRAINTS,
            [addresses(tensor, first, distance, STEP), above, size],
            dtype=DTYPE.value,
            is_pure=True,
            pack=COUNT,
        )
    return loaded


@gluon.jit
def spread(loaded, KIND: gl.constexpr, DTYPE: gl.constexpr):
    """The elements of a tile, of what was loaded for them."""
    COUNT: gl.constexpr = loaded.shape[1] // 2
    CODE: gl.constexpr = spread_code(KIND, COUNT)
    CONSTRAINTS: gl.constexpr = spread_constraints(KIND, COUNT)
    return gl.inline_asm_elementwise(
        CODE, CONSTRAINTS, [loaded], dtype=DTYPE.value, is_pure=True, pack=COUNT
    )


@constexpr_function
def kind_of(dtype):
    """The type of a tensor's elements, by the name that the IR has for it."""
    return {"fp32": "f32", "int32": "i32", "fp16": "f16"}.get(dtype.name, dtype.name)


@constexpr_function
def loaded_type(kind):
    """What a tile of loads pretends to hold."""
    return {"f32": gl.float32, "i32": gl.int32}.get(kind, gl.int16)


@gluon.jit
def read_diagonals(tensor, first, STEP: gl.constexpr, LAYOUT: gl.constexpr):
    """Elements at first + STEP * (row - column), 16-bit ones as f32."""
    KIND: gl.constexpr = kind_of(tensor.dtype.element_ty)
    DTYPE: gl.constexpr = gl.int32 if KIND == "i32" else gl.float32
    distance = distances(LAYOUT)
    loaded = load(tensor, first, distance, STEP, KIND, loaded_type(KIND))
    return spread(loaded, KIND, DTYPE)


@gluon.jit
def read_diagonals_within(
    tensor, first, low, high, STEP: gl.constexpr, LAYOUT: gl.constexpr
):
    """The same, and 0, unread, where row - column is not from low to high."""
    KIND: gl.constexpr = kind_of(tensor.dtype.element_ty)
    DTYPE: gl.constexpr = gl.int32 if KIND == "i32" else gl.float32
    distance = distances(LAYOUT)
    loaded = load_within(
        tensor, first, distance, low, high, STEP, KIND, loaded_type(KIND)
    )
    return spread(loaded, KIND, DTYPE)
