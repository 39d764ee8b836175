"""Classes of the blocks of a call: dead, partial or full.

The blocks are found as the call itself finds its blocks: by running the bounds of the
segments of its kernel, by the planner, or from the tables of a BlockMask. The mask is
not evaluated at the pairs within blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.ir import Region

from flexc.dialects import blocksparse
from flexc.errors import BlockMaskError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.planning.kernel_builder import DEAD, FULL, PARTIAL, UNKNOWN
from flexc.passes.scalar.variation import Along
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.listed_blocks import classes_of, pairs_of
from flexc.runtime.inputs.options import resolve_backend
from flexc.runtime.interpreters import run_region
from flexc.runtime.planner.plans import Planning, PlanningProblem, find_plan

__all__ = ["DEAD", "FULL", "PARTIAL", "Blocks", "Rows", "Run", "find_blocks"]

MAX_BLOCKS = 1 << 24
"""The most blocks that are classified; with more, larger blocks are used."""

MAX_AT_ONCE = 1 << 22

Kind = Literal["full", "partial"]


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks of one kind: the keys from `begin` to `end`, exclusive."""

    begin: int
    end: int
    kind: Kind


@dataclass(frozen=True)
class Rows:
    """The keys that the rows from `begin` to `end`, exclusive, visit."""

    begin: int
    end: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The classes of blocks of `size` rows and columns."""

    classes: Tensor
    """The classes as int8 of shape (B, H, rows, columns), on the CPU.

    Batches or heads with equal classes share memory.
    """
    size: tuple[int, int]
    lengths: tuple[int, int]

    def rows(self, b: int = 0, h: int = 0) -> Iterator[Rows]:
        """Yield the keys that each block of rows of one batch and head visits."""
        (m, n), (q_len, kv_len) = self.size, self.lengths
        for row, line in enumerate(self.classes[b, h]):
            values, counts = torch.unique_consecutive(line, return_counts=True)
            runs: list[Run] = []
            at = 0
            for kind, count in zip(values.tolist(), counts.tolist(), strict=True):
                begin, at = at, at + count
                if kind != DEAD:
                    name: Kind = "full" if kind == FULL else "partial"
                    runs.append(Run(begin * n, min(at * n, kv_len), name))
            yield Rows(row * m, min((row + 1) * m, q_len), tuple(runs))


def find_blocks(subject: Subject, size: tuple[int, int] | None) -> Blocks:
    """Return the blocks of a call, in blocks of `size` if given.

    Raise BlockMaskError if the call has tables with blocks of another size.
    """
    tables = subject.way == "tables"
    if tables and size not in (None, subject.block):
        raise BlockMaskError(
            f"a BlockMask is explained in its own blocks of {subject.block}, got {size}"
        )
    chosen = size or subject.block
    if not tables:
        chosen = _coarse(subject, chosen)
    if tables:
        classes = by_tables(subject)
    elif subject.way == "planned":
        classes = by_planning(subject, chosen)
    elif subject.way == "every pair":
        rows, columns = (
            -(-n // m) for n, m in zip(subject.sizes[2:], chosen, strict=True)
        )
        classes = torch.full(
            (1, 1, rows, columns), PARTIAL, dtype=torch.int8, device="cpu"
        )
    else:
        with torch.device("cpu"):
            classes = by_segments(subject, chosen)
    shape = (*subject.sizes[:2], *classes.shape[2:])
    return Blocks(classes.expand(shape), chosen, subject.sizes[2:])


def _coarse(subject: Subject, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size, doubled until there are at most `MAX_BLOCKS` blocks."""
    (m, n), (batch, heads), (q_len, kv_len) = size, lead_of(subject), subject.sizes[2:]
    while batch * heads * -(-q_len // m) * -(-kv_len // n) > MAX_BLOCKS:
        m, n = 2 * m, 2 * n
    return m, n


def lead_of(subject: Subject) -> tuple[int, int]:
    """Return the numbers of batches and heads that may have blocks of their own."""
    batch, heads = subject.sizes[:2]
    return (
        batch if Along.BATCH in subject.along else 1,
        heads if Along.HEAD in subject.along else 1,
    )


def by_segments(subject: Subject, size: tuple[int, int]) -> Tensor:
    """Return the classes by running the segments of a kernel with tiles of a size."""
    module = subject.proved.module.clone()
    convert = ConvertFlexToBlocksparsePass("cpp", *size, trimmed=False)
    pipelines.run(pipelines.to_blocksparse(convert), Context(), module)
    segments = [o for o in module.walk() if isinstance(o, blocksparse.SegmentOp)]
    (q_len, kv_len), lead = subject.sizes[2:], lead_of(subject)
    rows, columns = -(-q_len // size[0]), -(-kv_len // size[1])
    classes = torch.zeros((*lead, rows, columns), dtype=torch.int8)
    step = max(1, MAX_AT_ONCE // (lead[0] * lead[1] * columns))
    for first in range(0, rows, step):
        part = classes[:, :, first : first + step]
        grid = _Grid(subject, size, lead, first, part.size(2), columns)
        for segment in segments:
            grid.visit(segment, part)
    return classes


@dataclass(frozen=True, eq=False)
class _Grid:
    """Consecutive blocks of rows of all batches and heads."""

    subject: Subject
    size: tuple[int, int]
    lead: tuple[int, int]
    first: int
    count: int
    columns: int

    def visit(self, segment: blocksparse.SegmentOp, classes: Tensor) -> None:
        """Write the class of the blocks that a segment visits."""
        begin, end = self.run(segment.bounds)
        visits = int((end - begin).max().clamp(min=0))
        if not visits:
            return
        i = begin + arange(visits)
        (start,) = self.run(segment.block, i)
        column = torch.where(i < end, start // self.size[1], self.columns)
        kind = FULL if segment.is_full else PARTIAL
        wide = torch.nn.functional.pad(classes, (0, 1))
        wide.scatter_(-1, column.to(torch.int64), kind)
        classes.copy_(wide[..., :-1])

    def run(self, region: Region, *i: Tensor) -> list[Tensor]:
        _, _, q_len, kv_len = self.subject.sizes
        b = arange(self.lead[0])[:, None, None, None]
        h = arange(self.lead[1])[:, None, None]
        q_start = (self.first + arange(self.count))[:, None] * self.size[0]
        given = [b, h, q_start, *i, q_len, kv_len, *self.subject.on_host]
        shape = (*self.lead, self.count, i[0].size(-1) if i else 1)
        return [x.expand(shape) for x in run_region(region, given)]


def arange(n: int) -> Tensor:
    """Return 0, 1, ..., n - 1 as i32, the type of positions."""
    return torch.arange(n, dtype=torch.int32, device="cpu")


def by_planning(subject: Subject, size: tuple[int, int]) -> Tensor:
    """Return the classes by running the planner, as `flex_attention` does."""
    call = subject.call
    problem = PlanningProblem(*subject.sizes, *size)
    device = call.query.device
    backend = resolve_backend("auto", device)
    plan = find_plan(call.signature, call.trace(), problem, device, backend)
    whole = (problem.rows, problem.kv_len // problem.kv_block)
    planning = Planning.of(plan, call.signature, problem, device, whole)
    classes = planning.classify(0, problem.rows).cpu()
    return classes.masked_fill_(classes == UNKNOWN, PARTIAL)


def by_tables(subject: Subject) -> Tensor:
    """Return the classes that the tables of a BlockMask list."""
    tables = subject.call.tables
    assert tables is not None
    columns = -(-subject.sizes[3] // tables.block_size[1])
    pairs = [(c.cpu(), i.cpu()) for c, i in pairs_of(tables.tensors)]
    return classes_of(pairs, columns, (PARTIAL, FULL)).contiguous()


MAX_EVALUATED = 1 << 23
"""The most pairs of partial blocks at which the mask is evaluated."""

MAX_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class PartialPairs:
    """The counts from evaluating the mask at all pairs of partial blocks."""

    live: int = 0
    dead_blocks: int = 0
    """The number of blocks without a live pair, which a better proof could skip."""
    full_blocks: int = 0
    """The number of blocks without a dead pair, which need no mask."""

    def plus(self, other: PartialPairs, times: int = 1) -> PartialPairs:
        return PartialPairs(
            self.live + times * other.live,
            self.dead_blocks + times * other.dead_blocks,
            self.full_blocks + times * other.full_blocks,
        )


@dataclass(frozen=True)
class Counts:
    """The numbers of blocks and pairs of all batches and heads."""

    full: int
    partial: int
    skipped: int
    pairs: int
    computed_pairs: int
    """The number of pairs in visited blocks."""
    full_pairs: int
    """The number of pairs in full blocks, which are all live."""
    partial_pairs: PartialPairs | None
    """The counts within partial blocks; None if counting would take too long."""

    @property
    def blocks(self) -> int:
        return self.full + self.partial + self.skipped

    @property
    def computed(self) -> float:
        """The fraction of all pairs that is computed."""
        return self.computed_pairs / self.pairs

    @property
    def live_pairs(self) -> int | None:
        """The number of pairs that the mask keeps; None if unknown."""
        if self.partial_pairs is None:
            return None
        return self.full_pairs + self.partial_pairs.live

    @property
    def live(self) -> float | None:
        """The fraction of all pairs that is live; None if unknown."""
        return None if self.live_pairs is None else self.live_pairs / self.pairs


def count(subject: Subject, blocks: Blocks) -> Counts:
    """Count blocks and pairs of all batches and heads.

    Batches or heads with equal classes are evaluated once and multiplied.
    """
    batch, heads, q_len, kv_len = subject.sizes
    classes = distinct(blocks.classes, subject.along)
    times = (batch // classes.size(0)) * (heads // classes.size(1))
    found = look_into_partial(subject, classes, blocks)
    return Counts(
        full=times * int((classes == FULL).sum()),
        partial=times * int((classes == PARTIAL).sum()),
        skipped=times * int((classes == DEAD).sum()),
        pairs=batch * heads * q_len * kv_len,
        computed_pairs=times * area(classes != DEAD, blocks),
        full_pairs=times * area(classes == FULL, blocks),
        partial_pairs=None if found is None else PartialPairs().plus(found, times),
    )


def distinct(classes: Tensor, along: Along) -> Tensor:
    """Return the classes without repeated batches and heads."""
    for dim, name in enumerate((Along.BATCH, Along.HEAD)):
        # Blocks of a BlockMask may be equal where pairs differ.
        if classes.stride(dim) == 0 and name not in along:
            classes = classes.narrow(dim, 0, 1)
    return classes


def area(chosen: Tensor, blocks: Blocks) -> int:
    """Return the number of pairs in the chosen blocks."""
    (m, n), (q_len, kv_len) = blocks.size, blocks.lengths
    rows, columns = chosen.shape[2:]
    in_row = chosen.sum(-1) * n - chosen[..., -1] * (columns * n - kv_len)
    return int(in_row.sum() * m - in_row[..., -1].sum() * (rows * m - q_len))


def look_into_partial(
    subject: Subject, classes: Tensor, blocks: Blocks
) -> PartialPairs | None:
    """Evaluate the mask at all pairs of partial blocks.

    Return None if there are more than `MAX_EVALUATED` pairs.
    """
    m, n = blocks.size
    is_partial = classes == PARTIAL
    if int(is_partial.sum()) * m * n > MAX_EVALUATED:
        return None
    found = PartialPairs()
    for places in is_partial.nonzero().split(max(1, MAX_PAIRS_AT_ONCE // (m * n))):
        found = found.plus(look_into(subject, places, blocks))
    return found


def look_into(subject: Subject, places: Tensor, blocks: Blocks) -> PartialPairs:
    """Evaluate the mask in the blocks at `places`, rows of (b, h, row, column)."""
    (m, n), (q_len, kv_len) = blocks.size, blocks.lengths
    b, h, row, column = places.to(torch.int32)[:, :, None, None].unbind(1)
    q_idx, kv_idx = row * m + arange(m)[:, None], column * n + arange(n)
    inside = (q_idx < q_len) & (kv_idx < kv_len)
    q_idx, kv_idx = q_idx.clamp(max=q_len - 1), kv_idx.clamp(max=kv_len - 1)
    given = [b, h, q_idx, kv_idx, *subject.on_host]
    (live,) = run_region(subject.simple.mask_mod, given)
    live = live.expand(inside.shape)
    some = (live & inside).flatten(1)
    # A block that extends past the last key is never full.
    every = (live | (q_idx >= q_len)) & (column * n + n <= kv_len)
    return PartialPairs(
        int(some.sum()),
        int((~some.any(1)).sum()),
        int((some.any(1) & every.flatten(1).all(1)).sum()),
    )
