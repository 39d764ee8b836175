"""Layouts: which positions of a sequence each rank has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product

import torch
from torch import Tensor

from flexc.errors import OptionError, ShapeError

Runs = tuple[range, ...]
"""Positions: runs of neighbours, one after the other."""

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
        return tuple(map(count, self.ranks))

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
        placed: list[tuple[int, Tensor]] = []
        for runs, part in zip(self.ranks, parts, strict=True):
            pieces = part.split([*map(len, runs), 0], dim)
            placed += zip((run.start for run in runs), pieces, strict=False)
        found = [piece for _, piece in sorted(placed, key=lambda p: p[0])]
        return torch.cat(found, dim) if found else parts[0]

    @property
    def is_listed(self) -> bool:
        """True if positions are listed, as there are too many runs for a call each."""
        return max(map(len, self.ranks)) > MOST_RUNS

    def spans(self, runs: Runs, what: str, device: torch.device) -> list[Span]:
        """Return the parts of some of a rank's tokens for which there is one call each.

        `what` tells queries from keys, whose lists of positions are two tensors.
        """
        if self.is_listed:
            positions = _positions(runs, what, device)
            return [Span(range(len(positions)), positions, runs)]
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
def _positions(own: Runs, what: str, device: torch.device) -> Tensor:
    """Return the positions of runs: one tensor for all calls."""
    runs = [torch.arange(r.start, r.stop, device=device) for r in (range(0), *own)]
    return torch.cat(runs).to(torch.int32)


def overlap(runs: Runs, others: Runs) -> Runs:
    """Return the positions of runs that others have, too, in the order of the first."""
    ascending = sorted(others, key=lambda r: r.start)
    pairs = product(runs, ascending)
    both = (range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)
    return tuple(filter(len, both))


def without(runs: Runs, others: Runs) -> Runs:
    """Return the positions of runs that others lack."""
    found: list[range] = []
    for run in runs:
        inner = (end for r in overlap((run,), others) for end in (r.start, r.stop))
        ends = [run.start, *inner, run.stop]
        found += map(range, ends[::2], ends[1::2])
    return tuple(filter(len, found))


def union(runs: Iterable[range], most: int | None = None) -> Runs:
    """Return the positions of runs in ascending order, without repetitions.

    The narrowest gaps are filled until there are at most so many runs.
    """
    found: list[range] = []
    for run in sorted(runs, key=lambda r: r.start):
        if found and run.start <= found[-1].stop:
            run = range(found[-1].start, max(found.pop().stop, run.stop))
        found.append(run)
    if most is None or len(found) <= most:
        return tuple(found)
    gaps = [range(a.stop, b.start) for a, b in pairwise(found)]
    narrow = sorted(gaps, key=len)[: len(found) - most]
    return union([*found, *narrow])


def carried_keys(keys: Layout, needs: Sequence[Runs]) -> list[list[Runs]]:
    """Return the keys that a ring carries, by their rank and the step."""
    most = None if keys.is_listed else MOST_RUNS
    found: list[list[Runs]] = []
    for source, own in enumerate(keys.ranks):
        later: list[Runs] = [()]
        for step in reversed(range(1, keys.size)):
            here = overlap(own, needs[(source + step) % keys.size])
            later.append(overlap(own, union((*later[-1], *here), most)))
        found.append([own, *later[:0:-1]])
    return found


def take(tensor: Tensor, runs: Runs, some: Runs) -> Tensor:
    """Return some of the tokens of runs, given all in order."""
    parts = [tensor.narrow(2, p.start, len(p)) for p in places(runs, some)]
    if not parts:
        return tensor.narrow(2, 0, 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def places(runs: Runs, some: Runs) -> list[range]:
    """Return where some positions are among those of runs, each within one of them."""
    starts = accumulate(map(len, runs), initial=0)
    firsts = list(zip(runs, starts, strict=False))
    found: list[range] = []
    for part in some:
        at = next(
            at + part.start - run.start for run, at in firsts if part.start in run
        )
        found.append(range(at, at + len(part)))
    return found


def count(runs: Runs) -> int:
    """Return the number of positions."""
    return sum(map(len, runs))
