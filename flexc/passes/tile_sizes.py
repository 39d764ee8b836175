"""How large the tiles of a kernel are, for each target.

The choice is a table with a reason for every row. It only needs what a kernel
is keyed on, never the lengths of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd


@dataclass(frozen=True)
class TileSizes:
    """Tile of a program, and for a GPU its warps and pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int = 0
    num_stages: int = 0


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def largest_power_of_2_divisor(n: int) -> int:
    return n & -n


def padded_head_dim(target: str, head_dim: int) -> int:
    """Triton's tiles are powers of two and its matrix products at least 16 wide."""
    return max(16, next_power_of_2(head_dim)) if target == "triton" else head_dim


def choose_tile_sizes(
    target: str,
    bits: int,
    head_dim: int,
    value_dim: int,
    sparse_block: tuple[int, int] | None = None,
) -> TileSizes:
    """The tile for inputs of `bits` per element and the given head dims.

    With a block table, tiles divide its blocks.
    """
    widest = max(head_dim, value_dim)
    sizes = _triton_sizes(bits, widest) if target == "triton" else _cpu_sizes(widest)
    if sparse_block is None:
        return sizes
    return replace(
        sizes,
        block_m=_divide(target, sizes.block_m, sparse_block[0]),
        block_n=_divide(target, sizes.block_n, sparse_block[1]),
    )


def _divide(target: str, block: int, sparse: int) -> int:
    """The largest tile up to `block` that divides a sparse block."""
    if target == "triton":
        return min(block, largest_power_of_2_divisor(sparse))
    return gcd(block, sparse) if gcd(block, sparse) >= min(16, sparse) else sparse


def _triton_sizes(bits: int, widest: int) -> TileSizes:
    """Operand tiles fit shared memory, the accumulator and scores the registers."""
    if bits > 16:
        # IEEE fp32 products run on the FMA pipes: small tiles, few stages.
        if widest <= 64:
            return TileSizes(64, 32, num_warps=4, num_stages=2)
        if widest <= 128:
            return TileSizes(32, 32, num_warps=4, num_stages=2)
        return TileSizes(16, 16, num_warps=4, num_stages=1)
    if widest <= 128:
        return TileSizes(128, 64, num_warps=4 if widest <= 64 else 8, num_stages=3)
    if widest <= 256:
        return TileSizes(128, 64, num_warps=8, num_stages=2)
    return TileSizes(64, 32, num_warps=8, num_stages=2)


def _cpu_sizes(widest: int) -> TileSizes:
    """Q, K^T, V, scores and accumulator stay in the second-level cache."""
    return TileSizes(64, 128 if widest <= 64 else 64)
