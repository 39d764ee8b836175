"""The base class of targets: capabilities, limits, and the choice of tile sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

MachineName = Literal["amx", "avx512_bf16", "avx512", "avx2", "neon", "portable"]
"""A CPU's vector instructions; `cpp.MACHINES` describes them."""

HOPPER_SHARED_MEMORY = 232_448
"""The bytes of shared memory that one program may use on an H100.

See the CUDA C++ programming guide.
"""

WIDE = 128
"""The widest head dim of which a GPU's registers hold two sums of a program's rows."""

Block = tuple[int, int]
"""The rows and columns of a block of a table."""

Tanh = Literal["exact", "nvidia", "exp2"]
OnePass = Literal["none", "queries", "keys"]
"""The rows of the kernel that computes all gradients in one visit to each pair."""

F32Precision = Literal["ieee", "tf32", "tf32x3"]
Reads = Literal["coalesced", "in_place"]


@dataclass(frozen=True)
class LoweringOptions:
    """Options of the passes from `tile` to the IR that a target prints.

    Each target uses the options that apply to it.
    """

    tanh: Tanh = "exact"
    f32_precision: F32Precision = "ieee"
    reads: Reads = "coalesced"
    widens_bytes: bool = False
    """True if a GPU converts several numbers of 8 bits to 16 bits at a time."""
    overlap: bool = True
    recomputes: bool = False
    """True if the iterations of a schedule compute the addresses of slots anew."""
    shared_memory: int = HOPPER_SHARED_MEMORY
    machine: MachineName = "avx2"
    launches_early: bool = False
    """True if a GPU's kernels may be launched before the one before has ended."""


NO_OPTIONS = LoweringOptions()


@dataclass(frozen=True)
class TileSizes:
    """The tile of a program and, for a GPU, its warps and stages.

    `residents` is the number of programs that share the registers of a multiprocessor.
    Trimmed segments begin at multiples of `aligned_columns` if they move with the rows.
    """

    block_m: int
    block_n: int
    num_warps: int = 0
    num_stages: int = 0
    residents: int = 1
    aligned_columns: int = 1


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """Limits and choices that tile sizes depend on, in addition to the op.

    They are options of the pass that chooses the sizes.
    """

    shared_memory: int = HOPPER_SHARED_MEMORY
    """The bytes of shared memory that a program may use on a GPU."""
    overlap: bool = True
    """True if Gluon's products run while the softmax of another block is computed.

    This takes registers.
    """
    program_rows: int | None = None
    """The most rows of a program of Gluon or C++, None for no limit."""
    f32_precision: F32Precision = "ieee"
    """The precision in which a program of Triton computes products of fp32."""
    machine: MachineName = "avx2"
    """The machine whose panels a program of C++ owns."""
    trimmed: bool = True
    """True if iterations of C++ need not begin at multiples of a tile's columns."""


@dataclass(frozen=True)
class AttentionShape:
    """The properties of an attention op that its tile depends on."""

    bits: int
    """The bits of an element of the inputs."""
    head_dim: int
    value_dim: int
    sparse_block: Block | None = None
    short_rows: bool = False
    """True if a program may find little work: several should share a multiprocessor."""
    rows: int | None = None
    """The number of rows of a head, if known."""
    narrow: bool = False
    """True if keys or values have fewer bits than queries."""
    is_aligned: bool = True
    """True if addresses of rows are aligned."""
    values_in_keys: bool = False
    """True if values are the first columns of keys."""
    is_bf16: bool = False
    """True if elements of the inputs are bf16."""


@dataclass(frozen=True)
class PairShape:
    """The properties of an op of sums over pairs that its tile depends on.

    `rows`, `columns` and `results` are the widths of the matrices.
    """

    bits: int
    """The bits of an element of the inputs."""
    score_bits: int
    rows: Sequence[int]
    columns: Sequence[int]
    results: Sequence[int]
    sparse_block: Block | None = None
    sums_diagonals: bool = False
    """True if values are summed along diagonals: tiles must then be square."""
    sums_columns: bool = False
    is_aligned: bool = True
    """True if addresses of rows are aligned."""
    is_bf16: bool = False
    """True if elements of the inputs are bf16."""


@dataclass(frozen=True)
class RowFacts:
    """Facts about the amount of work for the rows of a program."""

    widest: int
    """The larger head dim of query and value."""
    has_tables: bool
    is_listed: bool
    """True if only tables state which columns the rows see."""
    has_few_keys: bool
    is_banded: bool
    changes_scores: bool


@dataclass(frozen=True)
class Target(ABC):
    """A target's capabilities, limits and tile sizes, which passes depend on.

    The defaults are for a target with few programs that run plain loops.
    """

    name: ClassVar[str]

    one_pass: ClassVar[OnePass] = "none"
    """The rows of a kernel whose one visit to each pair gives the gradients of all
    inputs.

    Its programs add to sums in memory. With "queries", a program adds to memory that no
    other program accesses. With "keys", programs add atomically.
    """
    merges_segments: ClassVar[bool] = False
    """True if loops have a fixed cost: similar segments share one loop."""
    one_loop: ClassVar[bool] = False
    """True if all segments share one loop, which is scheduled as a whole."""
    relaxes_division: ClassVar[bool] = False
    """True if division is approximate anyway and may become a product."""
    splits_row_terms: ClassVar[bool] = False
    """True if a term of a row is added to its maximum instead of to each score."""
    keeps_maximum: ClassVar[bool] = False
    """True if sums are scaled only where a maximum grew far: a branch is cheap."""
    samples_blocks: ClassVar[bool] = False
    """True if a planning kernel of its own samples the pairs of unknown blocks."""
    few_rows: ClassVar[int] = 0
    """The most rows of a head for which one program owns all rows.

    With few queries these are the rows of all heads that share a key head.
    """
    elements_of_splits: ClassVar[int] = 0
    """The elements of a tile of splits, if many splits are combined at a time."""
    has_sequence_blocks: ClassVar[bool] = False
    """True if blocks begin where packed sequences begin, if these are long."""
    guards_dead_columns: ClassVar[bool] = False
    """True if loads of pages skip columns that no row sees."""
    heads_per_group: ClassVar[int | None] = None
    """The most heads whose tiles start together."""

    def trims(self, options: SizeOptions) -> bool:
        """Return True if iterations visit no column outside a program's bounds."""
        return False

    def padded(self, dim: int, least: int = 16) -> int:
        """Return the rows or columns of a tile that holds `dim` of them."""
        return dim

    def reads_values_from_keys(self, shape: AttentionShape) -> bool:
        """Return True if a tile of keys also serves as values, its first columns."""
        return False

    @abstractmethod
    def attention_sizes(self, shape: AttentionShape, options: SizeOptions) -> TileSizes:
        """Return the best tile of an attention op."""

    @abstractmethod
    def pair_sizes(self, shape: PairShape, options: SizeOptions) -> TileSizes:
        """Return the best tile of sums over pairs."""

    def check(  # noqa: B027
        self, sizes: TileSizes, num_warps: int | None
    ) -> None:
        """Refuse tiles of attention that the target lacks; `num_warps` is an option."""

    def check_pairs(self, sizes: TileSizes) -> None:  # noqa: B027
        """Refuse tiles of sums over pairs that the target lacks."""

    def smaller(self, sizes: TileSizes, steps: int, given: Container[str]) -> TileSizes:
        """Return sizes that are `steps` steps smaller in memory; `given` sizes stay."""
        return sizes

    def has_short_rows(self, facts: RowFacts) -> bool:
        """Return True if programs find little work and should have small tiles."""
        return facts.has_tables or facts.is_banded

    def part_rows(self, sizes: TileSizes, bits: int, widest: int) -> int | None:
        """Return the rows of each part of a program; None without parts."""
        return None

    def planned_block(self, tile: TileSizes, is_given: bool) -> Block:
        """Return the size of a planned block; `is_given` if a user chose `tile`."""
        return tile.block_m, tile.block_n

    def derivative_block(self, bits: int, widest: int) -> Block | None:
        """Return the size of a block that is planned for kernels of derivatives.

        Return None if the blocks of attention serve them as well.
        """
        return None


def next_power_of_2(n: int) -> int:
    """Return the least power of 2 that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def power_of_2_up_to(n: int) -> int:
    """Return the largest power of 2 that is at most `n`."""
    return 1 << n.bit_length() - 1


def largest_power_of_2_divisor(n: int) -> int:
    return n & -n


def fitted(
    choices: Sequence[TileSizes],
    sparse_block: Block | None,
    divide: Callable[[int, int], int],
    fits: Callable[[TileSizes], bool],
) -> TileSizes:
    """Return the first tile that fits, cut by `divide` to the blocks of a table.

    Return the last tile if none fits.
    """
    if sparse_block is not None:
        m, n = sparse_block
        choices = [
            replace(s, block_m=divide(s.block_m, m), block_n=divide(s.block_n, n))
            for s in choices
        ]
    return next((sizes for sizes in choices if fits(sizes)), choices[-1])
