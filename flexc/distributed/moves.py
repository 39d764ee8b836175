"""Moves: the rows of tensors that ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor

from flexc.distributed.layouts import Layout, Runs, count, overlap, places, union
from flexc.distributed.shared_memory import copy
from flexc.runtime.inputs.tensor_facts import sum_dtype


@dataclass(frozen=True)
class ExchangeSide:
    """The rows of a rank's tensor (rows, B, H, D) that it exchanges with each rank.

    If it `has_shares`, the tensor is (rows, B, n, H, D): each of n ranks has a share.
    """

    rows: int
    """The number of rows of the tensor."""
    runs: tuple[Runs, ...]
    """The places of the rows, by the other rank."""
    has_shares: bool = False

    def pieces(self, tensor: Tensor, rank: int) -> list[Tensor]:
        """Return the parts of the tensor that are exchanged with a rank."""
        tensor = self.share(tensor, rank)
        return [tensor[run.start : run.stop] for run in self.runs[rank]]

    def share(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor[:, :, rank] if self.has_shares else tensor

    def pieces_of_others(self, tensor: Tensor, rank: int) -> list[Tensor]:
        """Return what is exchanged with all ranks but one, each element once."""
        if self.has_shares:
            found = tensor[:, :, :rank], tensor[:, :, rank + 1 :]
            return [shares for shares in found if shares.size(2)]
        runs = union(run for r, x in enumerate(self.runs) if r != rank for run in x)
        return [tensor[run.start : run.stop] for run in runs]


@dataclass(frozen=True, eq=False)
class Moves:
    """Rows of one tensor on each rank that ranks send each other.

    All ranks run the same moves, in the same order.
    """

    rank: int
    sides: Sequence[tuple[ExchangeSide, ExchangeSide]]
    """For each rank, the rows that it sends, and those that it gets."""

    @property
    def before(self) -> ExchangeSide:
        return self.sides[self.rank][0]

    @property
    def after(self) -> ExchangeSide:
        return self.sides[self.rank][1]

    @cached_property
    def adds(self) -> bool:
        """True if several ranks send a row: the result is their sum."""
        runs = [run for runs in self.after.runs for run in runs]
        return not self.after.has_shares and count(union(runs)) < sum(map(len, runs))

    @cached_property
    def others(self) -> Sequence[int]:
        """The other ranks. Each begins with its neighbour: all links are in use."""
        return *range(self.rank + 1, len(self.sides)), *range(self.rank)

    @cached_property
    def covers(self) -> bool:
        """True if some rank sends each row."""
        return count(union(r for x in self.after.runs for r in x)) == self.after.rows

    @cached_property
    def back(self) -> Moves:
        """The moves of the derivative."""
        return Moves(self.rank, [(after, before) for before, after in self.sides])

    def result(self, own: Tensor, heads_first: bool = False, pieces: int = 1) -> Tensor:
        """Return a new tensor for the result, with room for `pieces` pieces of heads.

        Rows that no rank sends are zeros.
        """
        after = self.after
        shares = [len(after.runs)] if after.has_shares else []
        outer = own.size(1), *shares, own.size(-2) * pieces
        dtype = sum_dtype(own.dtype) if self.adds else own.dtype
        if heads_first:
            shape = *outer, after.rows, own.size(-1)
            found = own.new_empty(shape, dtype=dtype).movedim(-2, 0)
        else:
            found = own.new_empty((after.rows, *outer, own.size(-1)), dtype=dtype)
        return found if self.covers and not self.adds else found.zero_()

    def put(self, found: Tensor, rank: int, arrived: Sequence[Tensor]) -> None:
        """Write rows of a rank to their places, or add them."""
        for place, piece in zip(self.after.pieces(found, rank), arrived, strict=True):
            if self.adds:
                place += piece
            elif place.data_ptr() != piece.data_ptr():
                copy(place, piece)

    def most_bytes(self, own: Tensor) -> int:
        """Return the size of the largest tensor that a rank sends rows of."""
        rows = max(before.rows for before, _ in self.sides)
        return rows * own.shape[1:].numel() * own.dtype.itemsize


@lru_cache(64)
def moves_to_gather(layout: Layout, rank: int, needs: tuple[Runs, ...] | None) -> Moves:
    """Return the moves of tokens to all ranks that need them, or to all ranks.

    A rank gets those from the first that it needs to the last.
    """
    wanted = needs or [(range(layout.length),)] * layout.size

    def sides(each: int) -> tuple[ExchangeSide, ExchangeSide]:
        runs = layout.ranks[each]
        sent = tuple(tuple(places(runs, overlap(runs, need))) for need in wanted)
        arriving = [overlap(other, wanted[each]) for other in layout.ranks]
        needed = union(run for some in arriving for run in some)
        first, end = (needed[0].start, needed[-1].stop) if needed else (0, 0)
        received = tuple(
            tuple(range(run.start - first, run.stop - first) for run in some)
            for some in arriving
        )
        return ExchangeSide(count(runs), sent), ExchangeSide(end - first, received)

    return Moves(rank, [*map(sides, range(layout.size))])


@lru_cache(64)
def moves_to_heads(layout: Layout, rank: int) -> Moves:
    """Return the moves of this rank's tokens to the ranks of their heads."""
    own = [tuple(places(runs, runs)) for runs in layout.ranks]
    after = ExchangeSide(layout.length, layout.ranks)
    before = [ExchangeSide(count(runs), (runs,) * layout.size, True) for runs in own]
    return Moves(rank, [(side, after) for side in before])
