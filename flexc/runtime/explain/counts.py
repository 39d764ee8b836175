"""How much of the pairs is computed, and how much of that is live."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flexc.passes.scalar.dependence import Along
from flexc.runtime.explain.blocks import DEAD, FULL, PARTIAL, Blocks, arange
from flexc.runtime.explain.subject import Subject
from flexc.runtime.interpreters import run_region

MAX_EVALUATED = 1 << 23
"""Pairs of partial blocks that the mask is evaluated at, to count live ones."""

MAX_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class PartialPairs:
    """What evaluating the mask at each pair of partial blocks found."""

    live: int = 0
    dead_blocks: int = 0
    """Blocks without a live pair, which might be skipped."""
    full_blocks: int = 0
    """Blocks without a dead pair, which might do without the mask."""

    def plus(self, other: PartialPairs, times: int = 1) -> PartialPairs:
        return PartialPairs(
            self.live + times * other.live,
            self.dead_blocks + times * other.dead_blocks,
            self.full_blocks + times * other.full_blocks,
        )


@dataclass(frozen=True)
class Counts:
    """Blocks of all batches and heads, and the pairs in them."""

    full: int
    partial: int
    skipped: int
    pairs: int
    computed_pairs: int
    """In blocks that are visited."""
    full_pairs: int
    """In full blocks, and so live."""
    partial_pairs: PartialPairs | None
    """What is in partial blocks; None where it would take too long to look."""

    @property
    def blocks(self) -> int:
        return self.full + self.partial + self.skipped

    @property
    def computed(self) -> float:
        """The fraction of all pairs that is computed."""
        return self.computed_pairs / self.pairs

    @property
    def live_pairs(self) -> int | None:
        """Where the mask holds."""
        if self.partial_pairs is None:
            return None
        return self.full_pairs + self.partial_pairs.live

    @property
    def live(self) -> float | None:
        """The fraction of all pairs that is live."""
        return None if self.live_pairs is None else self.live_pairs / self.pairs


def count(subject: Subject, blocks: Blocks) -> Counts:
    """Count over all batches and heads, each once that has classes of its own."""
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
    """The classes without the repetition of batches and heads that are alike."""
    for dim, name in enumerate((Along.BATCH, Along.HEAD)):
        # Pairs may differ where a BlockMask's blocks do not.
        if classes.stride(dim) == 0 and name not in along:
            classes = classes.narrow(dim, 0, 1)
    return classes


def area(chosen: Tensor, blocks: Blocks) -> int:
    """How many pairs are in chosen blocks."""
    (m, n), (q_len, kv_len) = blocks.size, blocks.lengths
    rows, columns = chosen.shape[2:]
    in_row = chosen.sum(-1) * n - chosen[..., -1] * (columns * n - kv_len)
    return int(in_row.sum() * m - in_row[..., -1].sum() * (rows * m - q_len))


def look_into_partial(
    subject: Subject, classes: Tensor, blocks: Blocks
) -> PartialPairs | None:
    """Evaluate the mask at all pairs of partial blocks, if they are not too many."""
    m, n = blocks.size
    is_partial = classes == PARTIAL
    if int(is_partial.sum()) * m * n > MAX_EVALUATED:
        return None
    found = PartialPairs()
    for places in is_partial.nonzero().split(max(1, MAX_AT_ONCE // (m * n))):
        found = found.plus(look_into(subject, places, blocks))
    return found


def look_into(subject: Subject, places: Tensor, blocks: Blocks) -> PartialPairs:
    """Evaluate the mask in blocks at (b, h, row, column)."""
    (m, n), (q_len, kv_len) = blocks.size, blocks.lengths
    b, h, row, column = places.to(torch.int32)[:, :, None, None].unbind(1)
    q_idx, kv_idx = row * m + arange(m)[:, None], column * n + arange(n)
    inside = (q_idx < q_len) & (kv_idx < kv_len)
    q_idx, kv_idx = q_idx.clamp(max=q_len - 1), kv_idx.clamp(max=kv_len - 1)
    given = [b, h, q_idx, kv_idx, *subject.on_host]
    (live,) = run_region(subject.simple.mask_mod, given)
    live = live.expand(inside.shape)
    some = (live & inside).flatten(1)
    # A block that sticks out over the last key is never full.
    every = (live | (q_idx >= q_len)) & (column * n + n <= kv_len)
    return PartialPairs(
        int(some.sum()),
        int((~some.any(1)).sum()),
        int((some.any(1) & every.flatten(1).all(1)).sum()),
    )
