"""Gluon: kernels with roles, on Hopper.

A program's rows are split among consumers: groups of four warps with 64 rows each, the
rows of one asynchronous product. Keys and values lie in rings of slots in shared
memory, `num_stages` slots each. The program's rows of the query lie in shared memory
too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flexc.errors import OptionError
from flexc.passes.targets.target import (
    WIDE,
    AttentionShape,
    Block,
    OnePass,
    PairShape,
    RowFacts,
    SizeOptions,
    TileSizes,
    largest_power_of_2_divisor,
)
from flexc.passes.targets.triton import MIN_BLOCK_N, TritonTarget

PART_ROWS = 64
"""The rows of a consumer."""

PART_WARPS = 4
"""The warps of a consumer, a warp group: it issues one product."""

PAIR_ROWS, PAIR_COLUMNS = 128, 64
"""The keys and queries of the kernel of all sums over pairs, for wide heads."""

REGISTERS = 65536
"""The number of 32-bit registers of a multiprocessor."""

LEAST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 240, 8
"""The registers that a thread of a role may have. The most is for ptxas: below 255."""

RESERVED_BYTES = 1024
"""The shared memory that each program takes in addition to its own, in bytes.

All programs of a multiprocessor together have `HOPPER_SHARED_MEMORY + RESERVED_BYTES`.
"""

WIDTH = 16
"""The bits of elements whose products are asynchronous."""

WIDEST = 256
"""The columns of the widest accumulator that registers hold for 64 rows."""

BARRIERS = 1024
"""The bytes of shared memory reserved for barriers and alignment."""

NARROW = 64
"""The largest head dim for which exponentials take as long as products."""

FEW_KEYS = {NARROW: (2048, 4096), WIDE: (256, 1024)}
"""By the widest head dim: the most keys with which small programs are faster, in plain
attention and with a mask or a score mod (docs/measurements/2026-11-27-short-rows.md).
"""

MOST_OVERLAPPING = 3
"""The most programs with overlapping products that may share a multiprocessor.

At head dim 64 a thread of such a program needs more registers than four programs on a
multiprocessor leave to a thread.
"""

MAX_PLANNED_ROWS = 128
"""The most rows of a planned block.

Larger blocks skip less, and a program may own fewer rows than its tile allows.
"""


@dataclass(frozen=True)
class GluonTarget(TritonTarget):
    """A GPU target whose warps have roles, with Triton's tiles if they cannot."""

    name: ClassVar[str] = "gluon"
    one_loop: ClassVar[bool] = True
    has_sequence_blocks: ClassVar[bool] = True
    splits_row_terms: ClassVar[bool] = True
    few_rows: ClassVar[int] = 0
    # TMA copies whole tiles.
    guards_dead_columns: ClassVar[bool] = False
    one_pass: ClassVar[OnePass] = "keys"

    def reads_values_from_keys(self, shape: AttentionShape) -> bool:
        """Return False: asynchronous copies of keys and of values differ."""
        return False

    def attention_sizes(self, shape: AttentionShape, options: SizeOptions) -> TileSizes:
        """Return the tile of a program with roles, which divides the blocks of a table.

        Programs of short rows share a multiprocessor. With overlap, only as many
        programs share it as leave registers for the tiles of two key blocks. Other
        programs have at most `program_rows` rows.
        """
        dims = self.padded(shape.head_dim), self.padded(shape.value_dim)
        if shape.bits > WIDTH or max(dims) > WIDEST:
            return super().attention_sizes(replace(shape, short_rows=False), options)
        choices = role_choices(max(dims))
        if (most := options.program_rows) is not None:
            choices = [replace(s, block_m=min(s.block_m, most)) for s in choices]
        if shape.short_rows:
            choices = short_choices(max(dims), options.overlap) + choices
        choices = [within(s, shape.sparse_block) for s in choices]
        fitting = (
            s
            for s in choices
            if held_bytes(s, shape.bits, *dims) <= options.shared_memory
        )
        return next(fitting, choices[-1])

    def pair_sizes(self, shape: PairShape, options: SizeOptions) -> TileSizes:
        """Return the tile of a program with roles, whose rows are keys.

        Rows lie in shared memory, in slots of their own.
        """
        widest = max(self.padded(d) for d in (*shape.rows, *shape.columns))
        if shape.bits > WIDTH or widest > WIDEST:
            return super().pair_sizes(shape, options)
        # A part's share of a sum by column has 64 columns or rows.
        columns = 128 if widest <= 64 else PAIR_COLUMNS
        sizes = TileSizes(PAIR_ROWS, columns, PART_WARPS, 2)
        return within(sizes, shape.sparse_block)

    def derivative_block(self, bits: int, widest: int) -> Block | None:
        """Return the columns and rows of the one kernel of all sums, if there is one.

        Its rows are keys.
        """
        if bits > WIDTH or not NARROW < widest <= WIDE:
            return super().derivative_block(bits, widest)
        return PAIR_COLUMNS, PAIR_ROWS

    def check(self, sizes: TileSizes, num_warps: int | None) -> None:
        """Refuse rows that are neither a power of 2 nor whole parts.

        Columns must be a power of 2 of at least `MIN_BLOCK_N`, and `num_warps`, if
        given, must be `PART_WARPS`.

        Raises:
            OptionError: a size is refused.
        """
        m, n = sizes.block_m, sizes.block_n
        if m % PART_ROWS and m != largest_power_of_2_divisor(m):
            raise OptionError(
                f"BLOCK_M expects a multiple of {PART_ROWS} or a power of 2, got {m}"
            )
        if n != largest_power_of_2_divisor(n) or n < MIN_BLOCK_N:
            raise OptionError(
                f"BLOCK_N expects a power of 2 of {MIN_BLOCK_N} or more, got {n}; "
                "where a BlockMask has such blocks, make it with a multiple of "
                f"{MIN_BLOCK_N} as BLOCK_SIZE"
            )
        if num_warps not in (None, PART_WARPS):
            raise OptionError(
                f"num_warps expects {PART_WARPS} where warps have roles, got "
                f"{num_warps}; leave it out, or take the target of Triton"
            )

    def has_short_rows(self, facts: RowFacts) -> bool:
        """Return True for tables alone, for few keys and, for narrow heads, for bands
        and score mods.

        For wide heads two consumers are faster than two programs, unless each row is
        known to see few keys.
        """
        if facts.is_listed or facts.has_few_keys:
            return True
        return facts.widest <= NARROW and (facts.is_banded or facts.changes_scores)

    def part_rows(self, sizes: TileSizes, bits: int, widest: int) -> int | None:
        has_roles = bits <= WIDTH and widest <= WIDEST
        return PART_ROWS if has_roles and sizes.block_m % PART_ROWS == 0 else None

    def planned_block(self, tile: TileSizes, is_given: bool) -> Block:
        rows = tile.block_m if is_given else min(tile.block_m, MAX_PLANNED_ROWS)
        return rows, tile.block_n


GLUON = GluonTarget()


def most_few_keys(shape: AttentionShape, has_mask: bool, changes_scores: bool) -> int:
    """Return the most keys with which small programs are faster.

    Return 0 if the tile does not depend on the number of keys.
    """
    widest = max(shape.head_dim, shape.value_dim)
    if shape.bits > WIDTH or (changes_scores and widest <= NARROW):
        return 0
    most = next((n for dim, n in FEW_KEYS.items() if widest <= dim), (0, 0))
    return most[has_mask or changes_scores]


def rows_of_a_program(heads: int, rows: int, multiprocessors: int) -> int | None:
    """Return the fewest rows, 64 or 128, with which all programs of a call run at once.

    Return None if more rows are needed: a program with more rows may then be faster.
    `heads` counts the heads of all batches; each head has `rows` rows.
    """
    for count in (PART_ROWS, 2 * PART_ROWS):
        if heads * -(-rows // count) <= multiprocessors:
            return count
    return None


def short_choices(widest: int, overlap: bool) -> list[TileSizes]:
    """Return tiles of small programs: while one program waits, others run.

    At head dim 64 the multiprocessor's exponentials are as busy as its products. Four
    programs of one consumer, without overlap within each, are then fastest except for
    plain attention over long rows.
    """
    if widest <= 64:
        residents = MOST_OVERLAPPING if overlap else 4
        return [TileSizes(64, 64, PART_WARPS, 2, residents)]
    if widest <= 128:
        return [TileSizes(64, 64, PART_WARPS, 2, residents=2)]
    return []


def role_choices(widest: int) -> list[TileSizes]:
    """Return tiles for inputs of 16 bits in order of preference.

    At head dim 64 three consumers are faster than two; at 128 two are faster than
    three, and 128 columns are faster than 64. At 256 registers and shared memory have
    room for only 64 columns.
    """
    last = [TileSizes(128, 64, PART_WARPS, 2), TileSizes(64, 64, PART_WARPS, 2)]
    if widest <= 64:
        return [TileSizes(192, 128, PART_WARPS, 2), *last]
    if widest <= 128:
        return [TileSizes(128, 128, PART_WARPS, 2), *last]
    return last


def within(sizes: TileSizes, sparse_block: tuple[int, int] | None) -> TileSizes:
    """Return sizes that divide the blocks of a table, with whole parts if possible."""
    if sparse_block is None:
        return sizes
    m, n = sparse_block
    parts = (r for r in range(sizes.block_m, 0, -PART_ROWS) if m % r == 0)
    rows = min(sizes.block_m, largest_power_of_2_divisor(m))
    columns = min(sizes.block_n, largest_power_of_2_divisor(n))
    return replace(sizes, block_m=next(parts, rows), block_n=columns)


def held_bytes(sizes: TileSizes, bits: int, head_dim: int, value_dim: int) -> int:
    """Return the bytes of shared memory that all `residents` hold.

    A program holds Q and, for each stage, a slot of K and of V. O takes the place of Q
    if both have the same width, else O has memory of its own.
    """
    rows = head_dim if head_dim == value_dim else head_dim + value_dim
    columns = sizes.num_stages * (head_dim + value_dim)
    held = (sizes.block_m * rows + sizes.block_n * columns) * bits // 8 + BARRIERS
    return held * sizes.residents
