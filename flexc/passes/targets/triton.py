"""Triton: tiles of powers of two whose operands fit shared memory.

Tables list tiles in order of preference, as measured on an H100. The first tile that
fits is chosen. Accumulators and values must fit registers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flexc.errors import OptionError
from flexc.passes.targets.target import (
    AttentionShape,
    Block,
    PairShape,
    SizeOptions,
    Target,
    TileSizes,
    fitted,
    largest_power_of_2_divisor,
    next_power_of_2,
    power_of_2_up_to,
)

UNALIGNED_VALUE_DIM = 64
"""The narrowest value tile if rows are not aligned.

Unaligned tiles reach shared memory through registers. For narrower tiles the product of
triton 3.6 reads past its operand on Hopper (memcheck reports this).
"""

MIN_BLOCK_N = 16
"""The least number of elements that a matrix product sums over."""

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
"""The sizes that are halved, with lower bounds, until a program fits shared memory.

Nearly all of a program's shared memory grows with its columns: keys, values and the
tiles that a mod loads for each score, which Triton copies ahead for as many blocks as
there are stages. With fewer than 64 columns, or with one stage, products wait for their
operands.
"""

MOST_WHOLE = 256
"""The most bytes of a tile's row that is not split because of its padding."""

MOST_STEPS = 12
"""An upper bound of the number of steps from any tile of the tables."""

WARP_GROUP_ROWS = 64
"""The least number of rows of asynchronous products."""

FEW_ROWS = 64
"""The most rows for which a program owns all rows instead of a tile of many."""

FEW_ROWS_BITS = 64 * 256 * 16
"""The bits of keys and values that a program of few rows reads at a time.

There is room for four stages.
"""

MOST_OF_FOUR_WARPS = 64 * 256
"""The most elements of a result with few rows that the registers of four warps hold."""

MOST_OF_TWO_WARPS = 16 * 128
"""The same for two warps."""

FULL_WARPS = 8
"""The warps of a multiprocessor that may use 255 registers each."""

PAIRED = TileSizes(64, 64, 4, 3)
"""The tile for head dim 128 and short rows: one program loads, another computes."""


SMALL_PAIRS = [TileSizes(32, 32, 4, 1), TileSizes(16, 16, 4, 1)]
"""The smallest tiles of sums over pairs, which fit any shared memory."""

DERIVATIVE_BLOCK = 128, 128
"""The planned blocks for sums over pairs of 16 bits: rows and columns of any tile."""


def column_parts(dim: int, bits: int) -> tuple[int, ...]:
    """Return the columns of the tiles for rows of `dim` numbers, each a power of 2.

    One tile is padded to a power of 2. Two tiles take its place if its rows are long
    and they have fewer columns together. `bits` is the width of a product's operands.
    """
    whole = max(16, next_power_of_2(dim))
    first = power_of_2_up_to(dim)
    rest = max(16, next_power_of_2(dim - first))
    is_long = whole * bits > 8 * MOST_WHOLE
    return (first, rest) if is_long and first + rest < whole else (whole,)


@dataclass(frozen=True)
class TritonTarget(Target):
    """A GPU target whose warps all run the same code."""

    name: ClassVar[str] = "triton"
    merges_segments: ClassVar[bool] = True
    relaxes_division: ClassVar[bool] = True
    few_rows: ClassVar[int] = FEW_ROWS
    elements_of_splits: ClassVar[int] = 4096
    guards_dead_columns: ClassVar[bool] = True
    heads_per_group: ClassVar[int | None] = 8

    def padded(self, dim: int, least: int = 16) -> int:
        return max(least, next_power_of_2(dim))

    def parts(self, dim: int, shape: AttentionShape | PairShape) -> tuple[int, ...]:
        """Return the columns of each of the tiles that hold rows of `dim` numbers."""
        if not shape.is_aligned:
            return (self.padded(dim),)
        return column_parts(dim, shape.bits)

    def held(self, dim: int, shape: AttentionShape | PairShape) -> int:
        """Return the columns of all tiles that hold rows of `dim` numbers."""
        return sum(self.parts(dim, shape))

    def reads_values_from_keys(self, shape: AttentionShape) -> bool:
        """Return True if values are all tiles of keys, or the first one.

        Tiles have no parts that products could read.
        """
        keys, values = (self.parts(d, shape) for d in (shape.head_dim, shape.value_dim))
        is_same = shape.head_dim == shape.value_dim or keys[:1] == values
        return shape.values_in_keys and is_same

    def attention_sizes(self, shape: AttentionShape, options: SizeOptions) -> TileSizes:
        bits, memory = shape.bits, options.shared_memory
        both = shape.head_dim, shape.value_dim
        dims = [self.held(d, shape) for d in both]
        shares = self.reads_values_from_keys(shape)
        held = [dims[0], 0] if shares else dims
        choices = attention_choices(
            bits, max(dims), shape.short_rows, multiplies_tf32(shape, options)
        )
        if shape.rows is not None and shape.rows <= self.few_rows:
            rows = self.padded(shape.rows)
            if shape.narrow:
                choices = narrow_keys_choices(rows, bits, dims[0], dims[1], memory)
            else:
                choices = few_rows_choices(rows, bits, sum(held), dims[1], shares)
        elif shape.short_rows and bits <= 16:
            twice = operand_bytes(PAIRED, bits, *held) * 2 <= memory
            choices = [PAIRED] * (twice and 64 < max(dims) <= 128) + choices
        return fitted(
            choices,
            shape.sparse_block,
            divisor,
            lambda sizes: operand_bytes(sizes, bits, *held) <= memory,
        )

    def pair_sizes(self, shape: PairShape, options: SizeOptions) -> TileSizes:
        rows, columns = (
            [self.held(d, shape) for d in s] for s in (shape.rows, shape.columns)
        )
        choices = pair_choices(
            shape.bits,
            rows,
            columns,
            len(shape.results),
            multiplies_tf32(shape, options),
        )
        if shape.sums_diagonals:
            choices = [s for s in choices if s.block_m == s.block_n] or choices[-1:]
        if shape.sparse_block is not None:
            # A tile that was cut has too many warps for its size.
            m, n = shape.sparse_block
            whole = [s for s in choices if not (m % s.block_m or n % s.block_n)]
            choices = whole or choices

        def fits(sizes: TileSizes) -> bool:
            held = pair_operand_bytes(sizes, shape.bits, rows, columns)
            return held <= options.shared_memory

        return fitted(choices, shape.sparse_block, divisor, fits)

    def derivative_block(self, bits: int, widest: int) -> Block | None:
        """Return blocks of whole tiles, which are larger than those of short rows."""
        return DERIVATIVE_BLOCK if bits <= 16 else None

    def check(self, sizes: TileSizes, num_warps: int | None) -> None:
        check_powers_of_2(sizes)

    def check_pairs(self, sizes: TileSizes) -> None:
        check_powers_of_2(sizes)

    def smaller(self, sizes: TileSizes, steps: int, given: Container[str]) -> TileSizes:
        """Return sizes that are `steps` steps smaller, or the smallest possible.

        The shared memory for Triton's own copies, of gathers and between layouts, is
        known only after Triton has compiled a kernel.
        """
        for name, least in STEPS:
            number: int = getattr(sizes, name)
            while name not in given and number > least and steps:
                number, steps = max(least, number // 2), steps - 1
            sizes = replace(sizes, **{name: number})
        few_rows = sizes.block_m <= 64 and "num_warps" not in given
        return replace(sizes, num_warps=min(sizes.num_warps, 4)) if few_rows else sizes


TRITON = TritonTarget()


def divisor(block: int, sparse: int) -> int:
    """Return the largest power of 2 up to `block` that divides a sparse block."""
    return min(block, largest_power_of_2_divisor(sparse))


def check_powers_of_2(sizes: TileSizes) -> None:
    """Refuse tiles and warps that are not powers of 2."""
    for name, number in (
        ("BLOCK_M", sizes.block_m),
        ("BLOCK_N", sizes.block_n),
        ("num_warps", sizes.num_warps),
    ):
        if number != largest_power_of_2_divisor(number):
            raise OptionError(f"{name} expects a power of 2 for Triton, got {number}")
    if sizes.block_n < MIN_BLOCK_N:
        raise OptionError(
            f"BLOCK_N expects {MIN_BLOCK_N} or more for Triton, got "
            f"{sizes.block_n}; where a BlockMask has such blocks, make it with a "
            f"multiple of {MIN_BLOCK_N} as BLOCK_SIZE"
        )


def operand_bytes(sizes: TileSizes, bits: int, head_dim: int, value_dim: int) -> int:
    """Return the bytes of Q once, and of K and V once for each stage in memory.

    Products of fewer rows than a warp group's finish in their iteration, so that the
    block that they read makes room for the last stage.
    """
    if not sizes.num_stages:
        return 0
    query = sizes.block_m * head_dim
    stages = max(1, sizes.num_stages - (sizes.block_m < WARP_GROUP_ROWS))
    held = stages * sizes.block_n * (head_dim + value_dim)
    return (query + held) * bits // 8


def pair_operand_bytes(
    sizes: TileSizes, bits: int, row_dims: Sequence[int], column_dims: Sequence[int]
) -> int:
    """Return the bytes of rows once, of columns once for each stage, and of values."""
    if not sizes.num_stages:
        return 0
    rows = sizes.block_m * sum(row_dims)
    columns = sizes.num_stages * sizes.block_n * sum(column_dims)
    return (rows + columns + sizes.block_m * sizes.block_n) * bits // 8


def attention_choices(
    bits: int, widest: int, short_rows: bool, is_tf32: bool
) -> list[TileSizes]:
    """Return tiles of attention, the best first.

    At head dim 128 two warp groups share 128 rows. At 64 several programs share a
    multiprocessor, and three stages hide the loads.
    """
    if bits > 16:
        return f32_choices(widest, short_rows, is_tf32)
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


def f32_choices(widest: int, short_rows: bool, is_tf32: bool) -> list[TileSizes]:
    """Return tiles of attention of fp32 and fp64, the best first.

    IEEE products run on the FMA pipes: small tiles, few stages. Products of tf32 run on
    tensor cores.
    """
    smaller = [TileSizes(64, 32, 4, 2), TileSizes(32, 32, 4, 1)]
    if is_tf32 and widest <= 128:
        return [TileSizes(128, 64, 8, 2), TileSizes(64, 64, 4, 2), *smaller]
    if widest <= 16:
        return [TileSizes(64, 128, 4, 2), *smaller]
    if widest <= 32:
        return [TileSizes(128, 64, 8, 2), *smaller]
    if widest <= 64:
        return [TileSizes(32 if short_rows else 64, 64, 4, 2), *smaller]
    if widest <= 128:
        return [TileSizes(32, 32, 4, 2), TileSizes(32, 16, 4, 1)]
    return [TileSizes(16, 16, 4, 1)]


def few_rows_choices(
    rows: int, bits: int, read: int, value_dim: int, wide: bool
) -> list[TileSizes]:
    """Return tiles of a program with all rows, the best first.

    Its time is that of reading keys and values, `read` numbers for each key. Many
    stages keep reads in flight. Instructions are most of the time if keys hold the
    values: blocks are then `wide`, as wider blocks need fewer.
    """
    room, most = (2 * FEW_ROWS_BITS, 3) if wide else (FEW_ROWS_BITS, 4)
    columns = next_power_of_2(room // (read * bits))
    columns = max(MIN_BLOCK_N, min(128, columns))
    warps = 4 if rows * value_dim <= MOST_OF_FOUR_WARPS else 8
    return [TileSizes(rows, columns, warps, stages) for stages in range(most, 0, -1)]


def narrow_keys_choices(
    rows: int, bits: int, head_dim: int, value_dim: int, memory: int
) -> list[TileSizes]:
    """Return tiles of a program with all rows over narrow keys, the best first.

    A block is read, converted, multiplied and normalised in turn. Programs of few
    warps, which seldom wait for each other, share a multiprocessor to overlap that.
    """
    columns = next_power_of_2(FEW_ROWS_BITS // ((head_dim + value_dim) * bits))
    columns = max(MIN_BLOCK_N, min(64, columns))
    elements = rows * value_dim
    warps = 4 if elements <= MOST_OF_FOUR_WARPS else 8
    warps = 2 if elements <= MOST_OF_TWO_WARPS else warps
    converted = (rows * head_dim + columns * value_dim) * bits // 8
    block = columns * (head_dim + value_dim)
    choices: list[TileSizes] = []
    for stages in (3, 2, 1):
        held = converted + max(1, stages - 1) * block
        residents = max(1, min(FULL_WARPS // warps, memory // held))
        choices.append(TileSizes(rows, columns, warps, stages, residents))
    return choices


def multiplies_tf32(shape: AttentionShape | PairShape, options: SizeOptions) -> bool:
    """Return True if products are of fp32 and run on tensor cores."""
    return shape.bits == 32 and options.f32_precision != "ieee"


def pair_choices(
    bits: int,
    rows: Sequence[int],
    columns: Sequence[int],
    results: int,
    is_tf32: bool,
) -> list[TileSizes]:
    """Return tiles of sums over pairs with `results` result matrices, best first."""
    widest, small = max(*rows, *columns), SMALL_PAIRS
    is_second = len(rows) > 2  # Second derivatives: twice as much of all.
    if bits == 32 and not is_second:
        return f32_pair_choices(widest, is_tf32)
    if bits > 16:
        return small if widest <= 64 else small[1:]
    middle = [TileSizes(64, 64, 4, 2), TileSizes(64, 32, 4, 1)]
    if is_second:
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


def f32_pair_choices(widest: int, is_tf32: bool) -> list[TileSizes]:
    """Return tiles of sums over pairs of fp32, best first."""
    small = SMALL_PAIRS
    if widest <= 32:
        return [TileSizes(64, 64, 4, 2), TileSizes(64, 32, 4, 1), *small]
    if widest <= 64:
        return [TileSizes(128, 32, 8, 1), *small] if is_tf32 else small
    if widest <= 128:
        return small if is_tf32 else [TileSizes(32, 64, 8, 1), *small]
    return [TileSizes(16, 32, 4, 1), *small[1:]]
