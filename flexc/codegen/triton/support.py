"""Functions that emitted Triton kernels import."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh_approx(x):
    """NVIDIA's tanh of f32 in one instruction; max relative error 2^-11."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;",
        "=f,f",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
