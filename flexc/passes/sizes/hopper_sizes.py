"""How large the tiles of kernels with roles are, on Hopper.

A program's rows are split among consumers, groups of four warps with 64 rows each:
as many as one asynchronous product has. Its keys and values lie in rings of slots in
shared memory, `num_stages` of each, beside its rows of the query.
"""

from __future__ import annotations

from dataclasses import replace

from flexc.errors import OptionError
from flexc.passes.sizes.tile_sizes import (
    HOPPER_SHARED_MEMORY,
    TileSizes,
    choose_tile_sizes,
    largest_power_of_2_divisor,
    padded_head_dim,
)

PART_ROWS = 64
"""Rows of a consumer."""

PART_WARPS = 4
"""Warps of a consumer."""

WIDTH = 16
"""Bits of the elements whose products are asynchronous."""

WIDEST = 256
"""The widest accumulator that registers hold for 64 rows."""

BARRIERS = 1024
"""Bytes of shared memory left for barriers, and for what is aligned."""


def choose_hopper_sizes(
    bits: int,
    head_dim: int,
    value_dim: int,
    sparse_block: tuple[int, int] | None = None,
    shared_memory: int = HOPPER_SHARED_MEMORY,
    short_rows: bool = False,
    overlap: bool = True,
    program_rows: int | None = None,
) -> TileSizes:
    """The tile of a program; of what cannot have roles, that of Triton's programs.

    Tiles divide the blocks of a table, and what they hold fits shared memory. With
    `short_rows` a program may find little work, and several share a multiprocessor;
    with `overlap` as few as leave registers for the tiles of two blocks of keys. Other
    programs have `program_rows` rows, if that is given and less than they would have.
    """
    dims = padded_head_dim("gluon", head_dim), padded_head_dim("gluon", value_dim)
    if bits > WIDTH or max(dims) > WIDEST:
        return choose_tile_sizes(
            "triton", bits, head_dim, value_dim, sparse_block, shared_memory
        )
    choices = hopper_choices(max(dims))
    if program_rows is not None:
        choices = [replace(s, block_m=min(s.block_m, program_rows)) for s in choices]
    if short_rows:
        choices = short_choices(max(dims), overlap) + choices
    choices = [within(s, sparse_block) for s in choices]
    fitting = (s for s in choices if held_bytes(s, bits, *dims) <= shared_memory)
    return next(fitting, choices[-1])


def rows_of_a_program(heads: int, rows: int, multiprocessors: int) -> int | None:
    """Return 64 or 128, the fewer with which all programs of a call run at once.

    None if they do with neither: more rows may be faster. `heads` are those of all
    batches, with `rows` rows each. ARCHITECTURE.md has what was measured.
    """
    for count in (PART_ROWS, 2 * PART_ROWS):
        if heads * -(-rows // count) <= multiprocessors:
            return count
    return None


MOST_OVERLAPPING = 3
"""Programs that share a multiprocessor and have products that overlap.

They need about 112 registers of each thread at head dim 64. Of three it has 136, of
four 104.
"""


def short_choices(widest: int, overlap: bool) -> list[TileSizes]:
    """Tiles of small programs: what one waits for, its neighbours hide.

    Measured on an H100: documents 301 TFLOP/s, and 254 in programs of two consumers. At
    head dim 64 the multiprocessor's exponentials are as busy as its products, and four
    programs of one consumer, without overlap within each, beat all else but in plain
    attention over long rows: window 359 (281), soft cap 369 (334), bias 332 (279).
    """
    if widest <= 64:
        residents = MOST_OVERLAPPING if overlap else 4
        return [TileSizes(64, 64, PART_WARPS, 2, residents)]
    if widest <= 128:
        return [TileSizes(64, 64, PART_WARPS, 2, residents=2)]
    return []


def hopper_choices(widest: int) -> list[TileSizes]:
    """Tiles for inputs of 16 bits in order of preference; the first that fits is taken.

    Measured on an H100: at head dim 64 three consumers of 160 registers are 15 % faster
    than two, at 128 two of 240 than three, and 128 columns than 64 by 12 %. At 256
    there is room for 64 columns.
    """
    last = [TileSizes(128, 64, PART_WARPS, 2), TileSizes(64, 64, PART_WARPS, 2)]
    if widest <= 64:
        return [TileSizes(192, 128, PART_WARPS, 2), *last]
    if widest <= 128:
        return [TileSizes(128, 128, PART_WARPS, 2), *last]
    return last


def within(sizes: TileSizes, sparse_block: tuple[int, int] | None) -> TileSizes:
    """Sizes cut to divide the blocks of a table; rows in whole parts, if they can."""
    if sparse_block is None:
        return sizes
    m, n = sparse_block
    parts = (r for r in range(sizes.block_m, 0, -PART_ROWS) if m % r == 0)
    rows = min(sizes.block_m, largest_power_of_2_divisor(m))
    columns = min(sizes.block_n, largest_power_of_2_divisor(n))
    return replace(sizes, block_m=next(parts, rows), block_n=columns)


def held_bytes(sizes: TileSizes, bits: int, head_dim: int, value_dim: int) -> int:
    """Shared memory: Q, a slot of K and V for each stage, O where Q's place is not its.

    O takes the place of Q if it is as wide.
    """
    rows = head_dim if head_dim == value_dim else head_dim + value_dim
    columns = sizes.num_stages * (head_dim + value_dim)
    held = (sizes.block_m * rows + sizes.block_n * columns) * bits // 8 + BARRIERS
    return held * sizes.residents


def rows_per_part(sizes: TileSizes, bits: int, widest: int) -> int | None:
    """How many of a program's rows are one consumer's; None if it can have none.

    `widest` is the larger head dim of inputs of `bits` per element.
    """
    has_roles = bits <= WIDTH and widest <= WIDEST
    return PART_ROWS if has_roles and sizes.block_m % PART_ROWS == 0 else None


MIN_BLOCK_N = 16
"""Matrix products sum over so many elements at least."""


def check_hopper_sizes(sizes: TileSizes) -> None:
    """Rows come in powers of 2, or in parts that do; columns in powers of 2."""
    m, n = sizes.block_m, sizes.block_n
    if m % PART_ROWS and m != largest_power_of_2_divisor(m):
        raise OptionError(
            f"BLOCK_M expects a multiple of {PART_ROWS} or a power of 2, got {m}"
        )
    if n != largest_power_of_2_divisor(n) or n < MIN_BLOCK_N:
        raise OptionError(
            f"BLOCK_N expects a power of 2 of {MIN_BLOCK_N} or more, got {n}; where a "
            f"BlockMask has such blocks, make it with a multiple of {MIN_BLOCK_N} as "
            f"BLOCK_SIZE"
        )


def check_hopper_warps(num_warps: int | None) -> None:
    """A user has no choice of warps: a product is computed by a group of four."""
    if num_warps not in (None, PART_WARPS):
        raise OptionError(
            f"num_warps expects {PART_WARPS} where warps have roles, got {num_warps}; "
            "leave it out, or take the target of Triton"
        )
