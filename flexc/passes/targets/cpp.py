"""C++: programs that own a panel of rows, for the vectors and caches of a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from flexc.passes.targets.target import (
    AttentionShape,
    Block,
    MachineName,
    OnePass,
    PairShape,
    SizeOptions,
    Target,
    TileSizes,
    fitted,
    next_power_of_2,
    power_of_2_up_to,
)

CPU_COLUMNS = 96
"""The columns of a tile on a CPU: whole register tiles of 6 and of 8 rows."""

UNIT_COLUMNS = 192
"""The columns of a tile of two panels of a matrix unit, which fill a first-level cache.

An addition of V^T P^T loads and stores its sums once for these columns.
"""

LISTED_COLUMNS = 128
"""The widest block of a table that an iteration visits as a whole."""

SUMMED = 64
"""The rows, and the columns, of a tile of pairs with sums by column in memory."""

CPU_TILE_BYTES = 1 << 18
"""The bytes of a tile of keys or values: about half of a second-level cache."""

PANEL_DIM = 64
"""The head dim for each panel of rows that a program owns."""

MOST_PANELS = 4

FEW_ROWS = 16
"""The most rows for which a program owns all rows instead of a panel."""

FEW_ROWS_COLUMNS = 256
"""The columns of a tile with few rows: no keys and values are reused from a cache."""

KEPT_COLUMNS = 32
"""The columns of a block of transposed values that a thread keeps: `TILE_DEPTH`."""

PLANNED_BLOCK = 32, 64
"""The least rows of a planned block, and its columns.

With fewer columns there are more iterations, each of which has a fixed cost.
"""


@dataclass(frozen=True)
class PackedProducts:
    """Products of 16-bit floats whose rhs is packed, and the block of registers.

    One instruction adds the products of `depth` columns of the lhs and rows of the rhs,
    which `#tile.pairs` packs, to fp32. With a depth above 2 it is one of a matrix unit,
    whose registers hold 16 rows of 16 sums. `rows` and `vectors` of sums stay in
    registers, or `wide_rows` and twice as many vectors.
    """

    element: str
    """The type of the elements, as IR prints it: calls replay without xDSL."""
    rows: int
    vectors: int
    wide_rows: int | None = None
    depth: int = 2

    @property
    def is_of_unit(self) -> bool:
        """True if a matrix unit computes the products."""
        return self.depth > 2


@dataclass(frozen=True)
class VectorMachine:
    """The vectors of a CPU, and the block of a product that fits its registers.

    `register_rows` rows of `vectors` vectors each leave registers for a vector of the
    left operand and a row of the right operand. So do `wide_rows` rows of twice as many
    vectors, which load fewer operands for each sum, where a result has such columns.
    """

    name: MachineName
    vector_bytes: int
    register_rows: int
    vectors: int
    wide_rows: int | None = None
    widens_half: bool = False
    """True if one instruction widens a vector of fp16."""
    packed: PackedProducts | None = None
    """The products of 16-bit floats that need no widening."""

    def lanes(self, bits: int) -> int:
        """Return the number of elements of a vector."""
        return self.vector_bytes * 8 // bits

    def panel(self, bits: int) -> int:
        """Return the columns of a panel: those of a register tile that is not wide."""
        return self.lanes(bits) * self.vectors


MACHINES: dict[MachineName, VectorMachine] = {
    machine.name: machine
    for machine in (
        VectorMachine(
            *("amx", 64, 8, 2, 6),
            widens_half=True,
            packed=PackedProducts("bf16", 32, 2, wide_rows=16, depth=32),
        ),
        VectorMachine(
            *("avx512_bf16", 64, 8, 2, 6),
            widens_half=True,
            packed=PackedProducts("bf16", 8, 2),
        ),
        VectorMachine("avx512", 64, 8, 2, 6, widens_half=True),
        VectorMachine("avx2", 32, 6, 2, widens_half=True),
        VectorMachine("neon", 16, 6, 4),
        VectorMachine("portable", 16, 6, 2),
    )
}
"""The machines, the preferred one first."""

TALLEST = MOST_PANELS * max(machine.panel(32) for machine in MACHINES.values())
"""The most rows of a program on any machine, for scores in fp32."""


@dataclass(frozen=True)
class CppTarget(Target):
    """A CPU target, which runs few programs at a time."""

    name: ClassVar[str] = "cpp"
    one_pass: ClassVar[OnePass] = "queries"
    samples_blocks: ClassVar[bool] = True
    keeps_maximum: ClassVar[bool] = True
    few_rows: ClassVar[int] = FEW_ROWS

    def trims(self, options: SizeOptions) -> bool:
        return options.trimmed

    def attention_sizes(self, shape: AttentionShape, options: SizeOptions) -> TileSizes:
        widest = max(shape.head_dim, shape.value_dim)
        if self.trims(options):
            machine = MACHINES[options.machine]
            packed = machine.packed if shape.is_bf16 else None
            usual = panels_for(machine, widest, packed)
            return panel_sizes(
                machine,
                max(32, shape.bits),
                widest,
                shape.sparse_block,
                packed=packed,
                rows=shape.rows,
                panels=1 if shape.short_rows else usual,
                most_rows=options.program_rows,
            )
        # Q, K^T, V, scores and accumulator stay in the second-level cache.
        sizes = TileSizes(64, 128 if widest <= 64 else 64)
        return fitted([sizes], shape.sparse_block, divisor, lambda _: True)

    def pair_sizes(self, shape: PairShape, options: SizeOptions) -> TileSizes:
        if self.trims(options):
            machine = MACHINES[options.machine]
            return panel_sizes(
                machine,
                max(32, shape.score_bits),
                max(*shape.rows, *shape.columns),
                shape.sparse_block,
                shape.sums_columns,
                packed=machine.packed if shape.is_bf16 else None,
            )
        return fitted([TileSizes(64, 64)], shape.sparse_block, divisor, lambda _: True)

    def planned_block(self, tile: TileSizes, is_given: bool) -> Block:
        rows, columns = PLANNED_BLOCK
        return tile.block_m * max(1, rows // tile.block_m), columns


CPP = CppTarget()


def divisor(block: int, sparse: int) -> int:
    """Return a tile, usually up to `block`, that divides a sparse block.

    Prefer the greatest common divisor, then the largest divisor up to `block`. If both
    are below 16, return `sparse` itself.
    """
    least = min(16, sparse)
    if (common := gcd(block, sparse)) >= least:
        return common
    divisors = (n for n in range(block, 0, -1) if sparse % n == 0)
    return n if (n := next(divisors)) >= least else sparse


def rows_of_a_program(rows: int) -> int | None:
    """Return a limit on a program's rows, given the rows of a head.

    The limit is a power of 2, so that few kernels are made. Return None if no program
    would have more rows anyway.
    """
    most = next_power_of_2(rows)
    return most if most < TALLEST else None


def panels_for(
    machine: VectorMachine, widest: int, packed: PackedProducts | None
) -> int:
    """Return how many panels of rows a program owns: a power of 2.

    A program reads all keys and values that its rows see. Wide ones of a head may lie
    in a third-level cache, and rows of strided heads in many pages. A wide register
    tile has the columns of two panels. With more than two the operands of a matrix unit
    leave the first-level cache.
    """
    least = 2 if packed is None and machine.wide_rows is not None else 1
    most = 2 if packed is not None and packed.is_of_unit else MOST_PANELS
    return power_of_2_up_to(min(most, max(least, widest // PANEL_DIM)))


def panel_sizes(
    machine: VectorMachine,
    bits: int,
    widest: int,
    sparse_block: tuple[int, int] | None = None,
    sums_columns: bool = False,
    packed: PackedProducts | None = None,
    rows: int | None = None,
    panels: int = 1,
    most_rows: int | None = None,
) -> TileSizes:
    """Return the tile of a program, which owns one panel of rows, or `panels`.

    `bits` is the width of the computed elements, `widest` the largest head dim and
    `rows` the number of all rows, if known. No panel lies beyond `most_rows`. Rows
    divide the blocks of a table. Columns need not divide them, as iterations are
    trimmed; those of packed products find blocks that other programs of a thread kept.
    A program that `sums_columns` reads and writes these sums for each tile, so that
    tiles with more rows are faster.
    """
    panel = machine.panel(bits)
    if most_rows is not None:
        panels = min(panels, -(-most_rows // panel))
    panel *= panels
    if sums_columns:
        panel = max(panel, SUMMED // panel * panel)
    few = rows if rows is not None and rows <= FEW_ROWS else None
    if few is not None:
        panel, packed = few, None
    if sparse_block is not None and sparse_block[0] % panel:
        panel = divisor(panel, sparse_block[0])
    has_unit = packed is not None and packed.is_of_unit
    is_wide = has_unit and panel > machine.panel(bits)
    most = SUMMED if sums_columns else UNIT_COLUMNS if is_wide else CPU_COLUMNS
    room = CPU_TILE_BYTES * 8 // (widest * bits)
    step = 8 if packed is None else KEPT_COLUMNS
    columns = min(most, max(step, room // step * step))
    if few is not None:
        columns = FEW_ROWS_COLUMNS
    if sparse_block is None:
        aligned = 1 if packed is None else KEPT_COLUMNS
        return TileSizes(panel, columns, aligned_columns=aligned)
    sparse_n = sparse_block[1]
    if sparse_n <= min(LISTED_COLUMNS, room) and not sums_columns:
        return TileSizes(panel, sparse_n)
    # Iterations visit about equal numbers of columns.
    times = -(-sparse_n // columns)
    even = min(columns, -(-sparse_n // times // step) * step)
    return TileSizes(panel, even)
