"""Functions that emitted Gluon kernels import.

This module hides names that differ among versions of Triton, so that the text of a
kernel is the same for all versions.
"""

# pyright: basic
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from flexc.codegen.gluon.diagonal_reads import read_diagonals
from flexc.codegen.triton import support

__all__ = ["read_diagonals"]

# Triton 3.6 has other names for these three.
HAS_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return COUNT barriers; each completes a phase after ARRIVALS arrivals."""
    row = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):  # pyright: ignore
        mbarrier.init(row.index(i), count=ARRIVALS)
    # Ordinary stores wrote the initial values, and asynchronous copies must see them.
    fence_async_shared()
    return row


@gluon.jit
def tile_of(slot):
    """Return the tile in a slot, without the leading dimensions of size 1."""
    ROWS: gl.constexpr = slot.shape[slot.rank - 2]
    COLUMNS: gl.constexpr = slot.shape[slot.rank - 1]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(  # pyright: ignore
        [ROWS, COLUMNS], slot.dtype
    )
    if HAS_REINTERPRET:
        return slot.reinterpret(slot.dtype, [ROWS, COLUMNS], layout)
    else:
        return slot._reinterpret(slot.dtype, [ROWS, COLUMNS], layout)


# Inline assembly for single elements works in any layout: the code is Triton's.
tanh_approx = gluon.jit(support.tanh_approx.fn)
read_bf16 = gluon.jit(support.read_bf16.fn)
read_f16 = gluon.jit(support.read_f16.fn)
read_f32 = gluon.jit(support.read_f32.fn)
read_i32 = gluon.jit(support.read_i32.fn)
read_bf16_if = gluon.jit(support.read_bf16_if.fn)
read_f16_if = gluon.jit(support.read_f16_if.fn)
read_f32_if = gluon.jit(support.read_f32_if.fn)
read_i32_if = gluon.jit(support.read_i32_if.fn)
