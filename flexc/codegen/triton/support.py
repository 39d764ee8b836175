"""Functions that emitted Triton kernels import; those with PTX are for NVIDIA only.

`diagonals` and `add_to` compute the tile ops of these names.

`read_*` loads one element for each pointer, in the layout of the pointers. The loads go
through the non-coherent cache, because a kernel does not write its captures, nor does
an earlier kernel once `await_kernels` has returned.
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
def await_kernels():
    """Wait until the kernels that were launched before this one have ended."""
    tl.extra.cuda.gdc_wait()  # pyright: ignore[reportAttributeAccessIssue]


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


@triton.jit
def widen_f8e4m3fn(x, STAGED: tl.constexpr):
    """Return float8_e4m3fn as float16, four elements at a time.

    If STAGED, the code counts as impure: Triton would else convert elements after they
    have moved to the layout of a product, which takes a load for each byte.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 low, high;
            mov.b32 {low, high}, $2;
            cvt.rn.f16x2.e4m3x2 $0, low;
            cvt.rn.f16x2.e4m3x2 $1, high;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.float16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def widen_f8e5m2(x, STAGED: tl.constexpr):
    """Return float8_e5m2, the upper halves of float16, as `widen_f8e4m3fn` does."""
    return tl.inline_asm_elementwise(
        """
        {
            prmt.b32 $0, $2, 0, 0x1404;
            prmt.b32 $1, $2, 0, 0x3424;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.float16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def widen_i8(x, STAGED: tl.constexpr):
    """Return int8 as float16, as `widen_f8e4m3fn` does.

    With its sign flipped, a byte is the low byte of 2^10 + 128 + x as a float16.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 flipped, halves<2>, offset;
            mov.b32 offset, 0x64806480;
            xor.b32 flipped, $2, 0x80808080;
            prmt.b32 halves0, flipped, 0x64646464, 0x4140;
            prmt.b32 halves1, flipped, 0x64646464, 0x4342;
            sub.rn.f16x2 $0, halves0, offset;
            sub.rn.f16x2 $1, halves1, offset;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.float16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def halves_to_bf16(x, STAGED: tl.constexpr):
    """Return float16 as bfloat16 by way of f32; STAGED as in `widen_f8e4m3fn`."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 low, high;
            .reg .f32 f<2>;
            mov.b32 {low, high}, $1;
            cvt.f32.f16 f0, low;
            cvt.f32.f16 f1, high;
            cvt.rn.bf16x2.f32 $0, f1, f0;
        }
        """,
        "=r,r",
        [x],
        dtype=tl.bfloat16,
        is_pure=not STAGED,
        pack=2,
    )
