"""Arrays of summed adjoints: their shapes, and chunks that keep them small.

For a call of 8 x 16 heads and 8192 positions, in fp32:

| class    | shape                    | bytes   |
| -------- | ------------------------ | ------- |
| HEAD     | (B, Hq)                  | 512     |
| ROW      | (B, Hq, Sq)              | 4 MiB   |
| COLUMN   | (B, Hq, Skv)             | 4 MiB   |
| DIAGONAL | (B, Hq, Sq + Skv - 1)    | 8 MiB   |
| PAIR     | (B, Hq, Sq, Skv)         | 32 GiB  |

Entry d + Skv - 1 of a diagonal's is the sum over pairs of q_idx - kv_idx = d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from flexc.errors import GradientError
from flexc.passes.scalar.dependence import PAIR, Along
from flexc.passes.scalar.reads.captured_read import IndexClass

MAX_BYTES = 1 << 28
"""Of one array: what a GPU's smallest partition can spare."""

AXES: dict[IndexClass, tuple[Along, ...]] = {
    IndexClass.HEAD: (Along.BATCH, Along.HEAD),
    IndexClass.ROW: (Along.BATCH, Along.HEAD, Along.ROW),
    IndexClass.COLUMN: (Along.BATCH, Along.HEAD, Along.COLUMN),
    IndexClass.DIAGONAL: (Along.BATCH, Along.HEAD, PAIR),
    IndexClass.PAIR: (Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN),
}
"""What the dimensions of sums are along; PAIR is the diagonals."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call, of the query's heads."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


@dataclass(frozen=True)
class Chunk:
    """The pairs of these batches, heads and rows, with all columns."""

    batch: range
    heads: range
    rows: range

    @classmethod
    def whole(cls, sizes: Sizes) -> Chunk:
        return cls(range(sizes.batch), range(sizes.heads), range(sizes.q_len))

    def positions(self, axis: Along, sizes: Sizes) -> range:
        """The positions along an axis, or the distances."""
        match axis:
            case Along.BATCH:
                return self.batch
            case Along.HEAD:
                return self.heads
            case Along.ROW:
                return self.rows
            case Along.COLUMN:
                return range(sizes.kv_len)
            case _:
                return range(1 - sizes.kv_len, sizes.q_len)


def sums_shape(kind: IndexClass, sizes: Sizes, chunk: Chunk | None = None) -> list[int]:
    """The shape of the sums of a chunk, or of a whole call."""
    if kind not in AXES:
        raise GradientError(
            f"no sums are taken along what varies with the {kind.value}"
        )
    chunk = chunk or Chunk.whole(sizes)
    return [len(chunk.positions(axis, sizes)) for axis in AXES[kind]]


def sums_bytes(
    kind: IndexClass,
    sizes: Sizes,
    chunk: Chunk | None = None,
    itemsize: int = 4,
    parts: int = 1,
) -> int:
    """The bytes of the sums, of `parts` arrays that are still to be added up."""
    return math.prod(sums_shape(kind, sizes, chunk)) * itemsize * parts


def chunks_for(
    kind: IndexClass,
    sizes: Sizes,
    *,
    itemsize: int = 4,
    max_bytes: int = MAX_BYTES,
    rows: int = 128,
    rows_of_diagonals: int | None = None,
    whole_heads: bool = False,
) -> list[Chunk]:
    """Chunks of about equal size whose sums take at most `max_bytes`.

    They cover each pair once, in order. Batches are kept whole if there is room for
    one, else heads, else runs of a multiple of `rows` rows, of which one is the least;
    with `whole_heads` there are only runs of rows, of all heads.
    `rows_of_diagonals` rows of a head share an array of diagonals, which the kernel
    leaves to be added up; without it, all do.
    """
    whole = Chunk.whole(sizes)
    per_head = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, sizes.q_len)
    per_batch = per_head * sizes.heads
    if per_batch * sizes.batch <= max_bytes:
        return [whole]
    if whole_heads:
        per_run = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, rows)
        most = max_bytes // (per_run * sizes.heads * sizes.batch)
        runs = _runs(whole.rows, rows * max(most, 1), rows)
        return [Chunk(whole.batch, whole.heads, run) for run in runs]
    batches = _runs(whole.batch, max_bytes // max(per_batch, 1))
    heads, runs = [whole.heads], [whole.rows]
    if per_batch > max_bytes:
        heads = _runs(whole.heads, max_bytes // max(per_head, 1))
    if per_head > max_bytes:
        per_run = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, rows)
        runs = _runs(whole.rows, rows * max(max_bytes // per_run, 1), rows)
    return [Chunk(b, h, r) for b, h, r in product(batches, heads, runs)]


def _bytes_of_rows(
    kind: IndexClass, sizes: Sizes, itemsize: int, rows_of_diagonals: int | None, n: int
) -> int:
    """Bytes of the sums of n rows of a head."""
    if kind is IndexClass.DIAGONAL:
        arrays = -(-n // rows_of_diagonals) if rows_of_diagonals else 1
        return arrays * (sizes.q_len + sizes.kv_len - 1) * itemsize
    if kind is IndexClass.PAIR:
        return n * sizes.kv_len * itemsize
    return {IndexClass.ROW: n, IndexClass.COLUMN: sizes.kv_len}.get(kind, 1) * itemsize


def _runs(whole: range, most: int, multiple: int = 1) -> list[range]:
    """The fewest runs of at most so many, as long as each other, of a multiple."""
    count = -(-len(whole) // max(most, 1))
    if count <= 1:
        return [whole]
    length = -(-len(whole) // count)
    length = -(-length // multiple) * multiple
    return list(_cut(whole, length))


def _cut(whole: range, length: int) -> Iterator[range]:
    for start in range(whole.start, whole.stop, length):
        yield range(start, min(start + length, whole.stop))
