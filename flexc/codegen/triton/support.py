"""Functions that emitted Triton kernels import; those with PTX are for NVIDIA only.

`diagonals` and `add_to` compute the tile ops of these names.

`read_*` loads one element for each pointer, in the layout of the pointers. The loads go
through the non-coherent cache, because a kernel does not write its captures.
"""

# pyright: basic
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def diagonals(tile):
    """Return the sums of the diagonals of a square tile.

    Element c is the sum of all tile[i, j] with i - j + columns = c.
    """
    N: tl.constexpr = tile.shape[0]
    tl.static_assert(tile.shape[1] == N)
    row = tl.arange(0, N)[:, None]
    distance = tl.arange(0, N)[None, :]
    # Rotate every row, so that column d holds the diagonals d and d - N.
    turned = tl.gather(tile, (row - distance) & (N - 1), 1)
    upper = tl.sum(tl.where(row < distance, turned, 0.0), 0)
    lower = tl.sum(tl.where(row < distance, 0.0, turned), 0)
    return tl.reshape(tl.trans(tl.join(upper, lower)), (2 * N,))


@triton.jit
def add_to(pointers, tile):
    """Add a tile to memory that no other program accesses."""
    # Tiles that a loop adds may overlap at other offsets. Then another thread may have
    # stored an element that this thread loads, so all stores must come first.
    tl.debug_barrier()
    tl.store(pointers, tl.load(pointers) + tile)


@triton.jit
def tanh_approx(x):
    """Return tanh of f32 by one instruction, with a relative error up to 2^-11."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;",
        "=f,f",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_bf16(pointer):
    """Return elements of a bfloat16 tensor as float32."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 zero, half;
            mov.b16 zero, 0;
            ld.global.nc.b16 half, [$1];
            mov.b32 $0, {zero, half};
        }
        """,
        "=f,l",
        [pointer],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_f16(pointer):
    """Return elements of a float16 tensor as float32."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 half;
            ld.global.nc.b16 half, [$1];
            cvt.f32.f16 $0, half;
        }
        """,
        "=f,l",
        [pointer],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_f32(pointer):
    """Return elements of a float32 tensor."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.b32 $0, [$1];",
        "=f,l",
        [pointer],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_i32(pointer):
    """Return elements of an int32 tensor."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.b32 $0, [$1];",
        "=r,l",
        [pointer],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_bf16_if(pointer, valid):
    """Return elements of a bfloat16 tensor as float32, 0 where `valid` is false."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            .reg .b16 zero, half;
            setp.ne.s32 p, $2, 0;
            mov.b16 zero, 0;
            mov.b16 half, 0;
            @p ld.global.nc.b16 half, [$1];
            mov.b32 $0, {zero, half};
        }
        """,
        "=f,l,r",
        [pointer, valid.to(tl.int32)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_f16_if(pointer, valid):
    """Return elements of a float16 tensor as float32, 0 where `valid` is false."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            .reg .b16 half;
            setp.ne.s32 p, $2, 0;
            mov.b16 half, 0;
            @p ld.global.nc.b16 half, [$1];
            cvt.f32.f16 $0, half;
        }
        """,
        "=f,l,r",
        [pointer, valid.to(tl.int32)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_f32_if(pointer, valid):
    """Return elements of a float32 tensor, 0 where `valid` is false."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            setp.ne.s32 p, $2, 0;
            mov.b32 $0, 0;
            @p ld.global.nc.b32 $0, [$1];
        }
        """,
        "=&f,l,r",
        [pointer, valid.to(tl.int32)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def read_i32_if(pointer, valid):
    """Return elements of an int32 tensor, 0 where `valid` is false."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            setp.ne.s32 p, $2, 0;
            mov.b32 $0, 0;
            @p ld.global.nc.b32 $0, [$1];
        }
        """,
        "=&r,l,r",
        [pointer, valid.to(tl.int32)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
