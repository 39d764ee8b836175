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
def widen_f8e4m3fn_bf16(x, STAGED: tl.constexpr):
    """Return float8_e4m3fn as bfloat16, four elements at a time, by way of f32.

    If STAGED, the code counts as impure: Triton would else convert elements after they
    have moved to the layout of a product, which takes a load for each byte.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 low, high, h<4>;
            .reg .b32 halves<2>;
            .reg .f32 f<4>;
            mov.b32 {low, high}, $2;
            cvt.rn.f16x2.e4m3x2 halves0, low;
            cvt.rn.f16x2.e4m3x2 halves1, high;
            mov.b32 {h0, h1}, halves0;
            mov.b32 {h2, h3}, halves1;
            cvt.f32.f16 f0, h0;
            cvt.f32.f16 f1, h1;
            cvt.f32.f16 f2, h2;
            cvt.f32.f16 f3, h3;
            cvt.rn.bf16x2.f32 $0, f1, f0;
            cvt.rn.bf16x2.f32 $1, f3, f2;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.bfloat16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def widen_f8e5m2_bf16(x, STAGED: tl.constexpr):
    """Return float8_e5m2, the upper half of float16, as `widen_f8e4m3fn_bf16` does."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 h<4>;
            .reg .b32 halves<2>;
            .reg .f32 f<4>;
            prmt.b32 halves0, $2, 0, 0x1404;
            prmt.b32 halves1, $2, 0, 0x3424;
            mov.b32 {h0, h1}, halves0;
            mov.b32 {h2, h3}, halves1;
            cvt.f32.f16 f0, h0;
            cvt.f32.f16 f1, h1;
            cvt.f32.f16 f2, h2;
            cvt.f32.f16 f3, h3;
            cvt.rn.bf16x2.f32 $0, f1, f0;
            cvt.rn.bf16x2.f32 $1, f3, f2;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.bfloat16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def widen_i8_bf16(x, STAGED: tl.constexpr):
    """Return int8 as bfloat16, as `widen_f8e4m3fn_bf16` does.

    With its sign flipped, a byte is the low byte of 2^23 + 128 + x as a float.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 flipped, b<4>;
            .reg .f32 f<4>;
            xor.b32 flipped, $2, 0x80808080;
            prmt.b32 b0, flipped, 0x4b000000, 0x7440;
            prmt.b32 b1, flipped, 0x4b000000, 0x7441;
            prmt.b32 b2, flipped, 0x4b000000, 0x7442;
            prmt.b32 b3, flipped, 0x4b000000, 0x7443;
            mov.b32 f0, b0;
            mov.b32 f1, b1;
            mov.b32 f2, b2;
            mov.b32 f3, b3;
            sub.f32 f0, f0, 0f4b000080;
            sub.f32 f1, f1, 0f4b000080;
            sub.f32 f2, f2, 0f4b000080;
            sub.f32 f3, f3, 0f4b000080;
            cvt.rn.bf16x2.f32 $0, f1, f0;
            cvt.rn.bf16x2.f32 $1, f3, f2;
        }
        """,
        "=r,=r,r",
        [x],
        dtype=tl.bfloat16,
        is_pure=not STAGED,
        pack=4,
    )


@triton.jit
def widen_f8e4m3fn_f16(x, STAGED: tl.constexpr):
    """Return float8_e4m3fn as float16, as `widen_f8e4m3fn_bf16` does."""
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
def widen_f8e5m2_f16(x, STAGED: tl.constexpr):
    """Return float8_e5m2, the upper half of float16, as `widen_f8e4m3fn_bf16` does."""
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
def widen_i8_f16(x, STAGED: tl.constexpr):
    """Return int8 as float16, as `widen_f8e4m3fn_bf16` does.

    With its sign flipped, a byte is the low byte of 2^10 + 128 + x as a half.
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
