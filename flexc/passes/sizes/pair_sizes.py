"""How large the tiles of sums over pairs are, for each target.

A program keeps the matrices of its rows, and accumulators as large as its results; it
visits blocks of the columns' matrices, some of which are in flight on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexc.passes.sizes.tile_sizes import (
    TileSizes,
    fitted,
    padded_head_dim,
)


@dataclass(frozen=True)
class PairDims:
    """Columns of the matrices of rows, of columns and of the results."""

    rows: Sequence[int]
    columns: Sequence[int]
    results: Sequence[int]

    def padded(self, target: str) -> PairDims:
        sides = (self.rows, self.columns, self.results)
        return PairDims(*([padded_head_dim(target, d) for d in s] for s in sides))


def choose_pair_sizes(
    target: str,
    bits: int,
    dims: PairDims,
    sparse_block: tuple[int, int] | None,
    shared_memory: int,
    square: bool = False,
) -> TileSizes:
    """The tile for operands of `bits` per element.

    `square` asks for as many columns as rows, as sums along diagonals do. Tiles
    divide the blocks of a table, and what they load fits shared memory.
    """
    dims = dims.padded(target)
    choices = [TileSizes(64, 64)] if target == "cpp" else _triton(bits, dims)
    if square:
        choices = [s for s in choices if s.block_m == s.block_n] or choices[-1:]

    def fits(sizes: TileSizes) -> bool:
        return operand_bytes(sizes, bits, dims) <= shared_memory

    if sparse_block is not None:
        # A tile that was cut has too many warps for what is left of it.
        m, n = sparse_block
        whole = [s for s in choices if not (m % s.block_m or n % s.block_n)]
        choices = whole or choices
    return fitted(target, choices, sparse_block, fits)


def operand_bytes(sizes: TileSizes, bits: int, dims: PairDims) -> int:
    """Rows once, columns once for each stage of the pipeline; values in between."""
    if not sizes.num_stages:
        return 0
    rows = sizes.block_m * sum(dims.rows)
    columns = sizes.num_stages * sizes.block_n * sum(dims.columns)
    return (rows + columns + sizes.block_m * sizes.block_n) * bits // 8


def _triton(bits: int, dims: PairDims) -> list[TileSizes]:
    """Tiles in order of preference; the first that fits is taken.

    Accumulators and two tiles of values must fit registers. Measured on an H100 in
    bf16, for the gradient of the query (one result) and those of key and value (two);
    the next best choice loses 5 to 20 %.
    """
    widest, results = max([*dims.rows, *dims.columns]), len(dims.results)
    small = [TileSizes(32, 32, 4, 1), TileSizes(16, 16, 4, 1)]
    if bits > 16:
        return small if widest <= 64 else small[1:]
    middle = [TileSizes(64, 64, 4, 2), TileSizes(64, 32, 4, 1)]
    if len(dims.rows) > 2:  # Second derivatives: twice as much of all.
        return [TileSizes(64, 32, 4, 2), TileSizes(32, 32, 4, 2), *small]
    if widest <= 64:
        first = TileSizes(128, 64 if results <= 1 else 32, 4, 3)
        return [first, *middle, *small]
    if widest <= 128:
        return [TileSizes(128, 64, 8, 3), TileSizes(128, 64, 8, 2), *middle, *small]
    if widest <= 256:
        first = TileSizes(128, 64, 8, 1) if results <= 1 else TileSizes(64, 64, 8, 2)
        return [first, *middle, *small]
    return [TileSizes(64, 32, 8, 1), *small]
