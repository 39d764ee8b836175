"""Layouts: which positions of a sequence each rank has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from flexc.errors import OptionError, ShapeError

Runs = tuple[range, ...]
"""Neighbouring positions, run after run, in ascending order."""

MOST_RUNS = 4
"""The most runs that are calls of their own, with bounds in closed form. Positions in
more runs are a captured tensor, and the blocks of masks are planned.
"""


@dataclass(frozen=True)
class Layout:
    """The positions of a sequence that each rank has, in the order in which it has
    them.
    """

    ranks: tuple[Runs, ...]
    name: str = "given"

    def __post_init__(self) -> None:
        runs = sorted(self.runs, key=lambda r: r.start)
        ends = [0, *(r.stop for r in runs)]
        if any(r.step != 1 or r.start != e for r, e in zip(runs, ends, strict=False)):
            raise OptionError(
                "a layout expects ranges that cover a sequence from 0 on without "
                f"overlap, got {self.ranks}"
            )

    @classmethod
    def contiguous(cls, lengths: Iterable[int]) -> Layout:
        """Give rank r the r-th part."""
        ends = accumulate(lengths, initial=0)
        return cls(tuple(_runs([(a, b)]) for a, b in pairwise(ends)), "contiguous")

    @classmethod
    def zig_zag(cls, length: int, ranks: int) -> Layout:
        """Give rank r of n the r-th and the r-th last of 2n parts."""
        order = [*range(ranks), *reversed(range(ranks))]
        return cls.of_owners(length, order, ranks, "zig-zag")

    @classmethod
    def of_owners(
        cls, length: int, owners: Sequence[int], ranks: int, name: str = "given"
    ) -> Layout:
        """Cut a sequence in parts of equal lengths, as far as they divide it, and give
        each to its owner.
        """
        ends = [length * i // len(owners) for i in range(len(owners) + 1)]
        parts = list(zip(owners, pairwise(ends), strict=True))
        return cls(
            tuple(_runs(p for o, p in parts if o == rank) for rank in range(ranks)),
            name,
        )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The number of positions of each rank."""
        return tuple(sum(map(len, runs)) for runs in self.ranks)

    @cached_property
    def runs(self) -> Runs:
        """The runs of all ranks, rank after rank."""
        return tuple(run for own in self.ranks for run in own)

    @property
    def length(self) -> int:
        return sum(self.lengths)

    def shard(self, whole: Tensor, rank: int, dim: int = 2) -> Tensor:
        """Return a rank's part of a tensor of the whole sequence."""
        if whole.size(dim) != self.length:
            raise ShapeError(
                f"a layout of {self.length:,} positions shards tensors of this size in "
                f"dimension {dim}, got {tuple(whole.shape)}"
            )
        parts = [whole.narrow(dim, r.start, len(r)) for r in self.ranks[rank]]
        if not parts:
            return whole.narrow(dim, 0, 0)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def join(self, parts: Sequence[Tensor], dim: int = 2) -> Tensor:
        """Return the tensor of the whole sequence, given the parts of all ranks."""
        if not self.length:
            return parts[0]
        placed = {
            run.start: piece
            for runs, part in zip(self.ranks, parts, strict=True)
            for run, piece in zip(runs, part.split([*map(len, runs)], dim), strict=True)
        }
        return torch.cat([placed[start] for start in sorted(placed)], dim)

    @property
    def is_listed(self) -> bool:
        """True if positions are listed, as there are too many runs for a call each."""
        return max(map(len, self.ranks)) > MOST_RUNS

    def spans(self, rank: int, what: str, device: torch.device) -> list[Span]:
        """Return the parts of a rank's tokens for which there is one call each.

        `what` tells queries from keys, whose lists of positions are two tensors.
        """
        runs = self.ranks[rank]
        if self.is_listed:
            positions = _positions(self, rank, what, device)
            return [Span(range(self.lengths[rank]), positions, runs)]
        starts = accumulate(map(len, runs), initial=0)
        found = [
            Span(range(at, at + len(run)), run.start, (run,))
            for at, run in zip(starts, runs, strict=False)
        ]
        return found or [Span(range(0), 0, ())]


@dataclass(frozen=True)
class Span:
    """Tokens of a rank, and their positions in the whole sequence."""

    here: range
    """The places of the tokens on their rank."""
    origin: int | Tensor
    """The position of the first one, or those of all."""
    runs: Runs

    def of(self, tensor: Tensor, dim: int = 2) -> Tensor:
        """Return these tokens of a tensor of all tokens of the rank."""
        if len(self.here) == tensor.size(dim):
            return tensor
        return tensor.narrow(dim, self.here.start, len(self.here))


def _runs(parts: Iterable[tuple[int, int]]) -> Runs:
    """Return ascending ranges, neighbours joined, without empty ones."""
    found: list[range] = []
    for start, stop in parts:
        if found and found[-1].stop == start:
            found[-1] = range(found[-1].start, stop)
        elif stop > start:
            found.append(range(start, stop))
    return tuple(found)


@lru_cache(64)
def _positions(layout: Layout, rank: int, what: str, device: torch.device) -> Tensor:
    """Return the positions that a rank has: one tensor for all calls."""
    runs = [torch.arange(r.start, r.stop) for r in layout.ranks[rank]]
    return torch.cat([torch.arange(0), *runs]).to(device, torch.int32)
