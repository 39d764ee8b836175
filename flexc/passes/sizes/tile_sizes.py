"""How large the tiles of a kernel are, for each target.

The choice is a table with a reason for every row. It only needs what a kernel
is keyed on, never the lengths of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from math import gcd

from flexc.passes.sizes.vector_machine import MACHINES, MachineName


@dataclass(frozen=True)
class TileSizes:
    """Tile of a program; for a GPU its warps and stages, and how many share a
    multiprocessor: `residents`, where registers are to be shared out for that."""

    block_m: int
    block_n: int
    num_warps: int = 0
    num_stages: int = 0
    residents: int = 1


HOPPER_SHARED_MEMORY = 232_448
"""Bytes that one program may have on an H100 (CUDA C++ programming guide)."""


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def largest_power_of_2_divisor(n: int) -> int:
    return n & -n


def padded_head_dim(target: str, head_dim: int, least: int = 16) -> int:
    """A GPU's tiles are powers of two and its matrix products at least 16 wide."""
    return head_dim if target == "cpp" else max(least, next_power_of_2(head_dim))


UNALIGNED_VALUE_DIM = 64
"""The narrowest value tile where rows are not aligned.

Such tiles reach shared memory through registers, and for those with fewer columns
triton 3.6 lets the product read past its operand on Hopper (seen by memcheck).
"""


def choose_tile_sizes(
    target: str,
    bits: int,
    head_dim: int,
    value_dim: int,
    sparse_block: tuple[int, int] | None = None,
    shared_memory: int = HOPPER_SHARED_MEMORY,
    short_rows: bool = False,
) -> TileSizes:
    """The tile for inputs of `bits` per element and the given head dims.

    With a block table, tiles divide its blocks. On a GPU, operands fit the bytes
    of shared memory that a program may have. With `short_rows` a program may find
    little work, and two should share a multiprocessor.
    """
    dims = padded_head_dim(target, head_dim), padded_head_dim(target, value_dim)
    if target == "cpp":
        choices = [_cpu_sizes(max(dims))]
    else:
        choices = _triton_choices(bits, max(dims))
        if short_rows and bits <= 16:
            twice = _operand_bytes(PAIRED, bits, *dims) * 2 <= shared_memory
            choices = [PAIRED] * (twice and 64 < max(dims) <= 128) + choices

    def fits(sizes: TileSizes) -> bool:
        return _operand_bytes(sizes, bits, *dims) <= shared_memory

    return fitted(target, choices, sparse_block, fits)


def fitted(
    target: str,
    choices: Sequence[TileSizes],
    sparse_block: tuple[int, int] | None,
    fits: Callable[[TileSizes], bool],
) -> TileSizes:
    """The first tile that fits, cut to divide the blocks of a table; else the last."""
    if sparse_block is not None:
        choices = [_within(target, sizes, sparse_block) for sizes in choices]
    return next((sizes for sizes in choices if fits(sizes)), choices[-1])


STEPS = (
    ("block_n", 64),
    ("num_stages", 2),
    ("block_n", 32),
    ("block_m", 64),
    ("num_stages", 1),
    ("block_m", 32),
    ("block_n", 16),
    ("block_m", 16),
)
"""What is halved, and down to what, until a program fits shared memory.

Nearly all that a program holds there is as large as its columns: keys, values and what
a mod loads for each score, which Triton copies ahead for as many blocks as there are
stages. With fewer columns than 64 or one stage only, products wait for their operands.
"""

MOST_STEPS = 12
"""More than any choice of this table has."""


def smaller(sizes: TileSizes, steps: int, given: Container[str] = ()) -> TileSizes:
    """Sizes so many steps smaller, or as small as can be; `given` ones stay.

    Triton's own copies, of gathers and between layouts, are only known once it has
    compiled a kernel.
    """
    for name, least in STEPS:
        number: int = getattr(sizes, name)
        while name not in given and number > least and steps:
            number, steps = max(least, number // 2), steps - 1
        sizes = replace(sizes, **{name: number})
    few_rows = sizes.block_m <= 64 and "num_warps" not in given
    return replace(sizes, num_warps=min(sizes.num_warps, 4)) if few_rows else sizes


PAIRED = TileSizes(64, 64, 4, 3)
"""Head dim 128: one program loads while the other computes.

On an H100 causal, window and document tables gain 9 to 14 % over 128x128, more with
score mods; rows of thousands of keys without tables lose up to 7 % with some.
"""


def _within(target: str, sizes: TileSizes, sparse: tuple[int, int]) -> TileSizes:
    return replace(
        sizes,
        block_m=_divide(target, sizes.block_m, sparse[0]),
        block_n=_divide(target, sizes.block_n, sparse[1]),
    )


def _operand_bytes(sizes: TileSizes, bits: int, head_dim: int, value_dim: int) -> int:
    """Q once, K and V once for each stage of the pipeline."""
    if not sizes.num_stages:
        return 0
    query = sizes.block_m * head_dim
    stages = sizes.num_stages * sizes.block_n * (head_dim + value_dim)
    return (query + stages) * bits // 8


def _divide(target: str, block: int, sparse: int) -> int:
    """The largest tile up to `block` that divides a sparse block."""
    if target != "cpp":
        return min(block, largest_power_of_2_divisor(sparse))
    least = min(16, sparse)
    if (common := gcd(block, sparse)) >= least:
        return common
    divisors = (n for n in range(block, 0, -1) if sparse % n == 0)
    return n if (n := next(divisors)) >= least else sparse


def _triton_choices(bits: int, widest: int) -> list[TileSizes]:
    """Tiles in order of preference; the first that fits is taken.

    Measured on an H100 where 16 bits are concerned: at head dim 128 two warp
    groups share 128 rows, at 64 several programs share a multiprocessor, and three
    stages hide the loads. The accumulator must fit registers.
    IEEE fp32 products run on the FMA pipes: small tiles, few stages.
    """
    if bits > 16:
        if widest <= 64:
            return [TileSizes(64, 32, 4, 2), TileSizes(32, 32, 4, 1)]
        if widest <= 128:
            return [TileSizes(32, 32, 4, 2), TileSizes(32, 16, 4, 1)]
        return [TileSizes(16, 16, 4, 1)]
    if widest <= 64:
        return [
            TileSizes(128, 64, 4, 3),
            TileSizes(128, 64, 4, 2),
            TileSizes(64, 32, 4, 1),
        ]
    if widest <= 128:
        return [
            TileSizes(128, 128, 8, 3),
            TileSizes(128, 64, 8, 3),
            TileSizes(128, 64, 8, 2),
            TileSizes(64, 64, 4, 2),
            TileSizes(64, 32, 4, 1),
        ]
    if widest <= 256:
        return [
            TileSizes(128, 64, 8, 2),
            TileSizes(64, 64, 4, 2),
            TileSizes(64, 32, 4, 1),
            TileSizes(32, 32, 4, 1),
        ]
    return [TileSizes(64, 32, 8, 2), TileSizes(32, 32, 4, 1), TileSizes(16, 16, 4, 1)]


def _cpu_sizes(widest: int) -> TileSizes:
    """Q, K^T, V, scores and accumulator stay in the second-level cache."""
    return TileSizes(64, 128 if widest <= 64 else 64)


CPU_COLUMNS = 96
"""Columns that a CPU visits at a time: whole register tiles of 6 and of 8 rows."""

LISTED_COLUMNS = 128
"""Listed blocks of up to so many columns are visited at once."""

SUMMED = 64
"""Rows, and columns, of a tile of pairs whose sums by column lie in memory.

One thread of Zen 5, fp32, head dim 64, length 4,096: 64x64 reaches 85 % of the FMA peak
dense and 81 % causal, 32x64 83 and 77 %, 32x96 81 and 76 %, 128x64 86 and 80 %.
"""

CPU_TILE_BYTES = 1 << 18
"""Of a tile of keys or values: about half of a second-level cache."""

FEW_ROWS = 16
"""Programs of no more rows own just these."""

FEW_ROWS_COLUMNS = 256
"""Columns that they visit at a time: nothing of keys and values is kept."""


def panel_sizes(
    machine: MachineName,
    bits: int,
    widest: int,
    sparse_block: tuple[int, int] | None = None,
    sums_columns: bool = False,
    rows: int | None = None,
) -> TileSizes:
    """The tile of a program on a CPU, which owns one panel of rows.

    `bits` are those of what it computes with, `rows` how many rows there are in all,
    where that is known. Rows divide the blocks of a table; columns need not, as
    iterations are trimmed. What also `sums_columns` reads and writes these sums for
    each tile, which is worth more rows.
    """
    panel = MACHINES[machine].panel(bits)
    most = SUMMED if sums_columns else CPU_COLUMNS
    room = CPU_TILE_BYTES * 8 // (widest * bits)
    columns = min(most, max(8, room // 8 * 8))
    if sums_columns:
        panel = max(panel, SUMMED // panel * panel)
    if rows is not None and rows <= FEW_ROWS:
        panel, columns = rows, FEW_ROWS_COLUMNS
    if sparse_block is None:
        return TileSizes(panel, columns)
    sparse_m, sparse_n = sparse_block
    if sparse_m % panel:
        panel = _divide("cpp", panel, sparse_m)
    if sparse_n <= min(LISTED_COLUMNS, room) and not sums_columns:
        return TileSizes(panel, sparse_n)
    # About as many in each iteration.
    times = -(-sparse_n // columns)
    even = min(columns, -(-sparse_n // times // 8) * 8)
    return TileSizes(panel, even)
