"""Moves of rows between ranks: in messages, or read from the memory of other GPUs.

Moves have derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flexc.distributed.layouts import Layout, Runs, count, overlap, places, union
from flexc.distributed.shared_memory import SharedMemory, copy, exchange, memory_of
from flexc.runtime.inputs.tensor_facts import sum_dtype

ALIGNMENT = 256
"""Bytes from tensor to tensor in shared memory, in multiples."""

HEADS_FIRST = (1, 2, 0, 3)
"""The order in memory of rows (S, B, H, D) that are contiguous as (B, H, S, D)."""

Copy = Callable[[Tensor, Tensor], Tensor]
"""A function that copies to its first argument, and returns it."""


@dataclass(frozen=True)
class Side:
    """The rows of a rank's tensor (rows, B, H, D) that it exchanges with each rank."""

    rows: int
    """The number of rows of the tensor."""
    runs: tuple[Runs, ...]
    """The places of the rows, by the other rank."""
    has_shares: bool = False
    """True if each rank has its share of the heads, in the order of the ranks."""

    def pieces(self, tensor: Tensor, rank: int) -> list[Tensor]:
        """Return the parts of the tensor that are exchanged with a rank."""
        if self.has_shares:
            tensor = tensor.chunk(len(self.runs), 2)[rank]
        return [tensor[run.start : run.stop] for run in self.runs[rank]]

    def pieces_of_others(self, tensor: Tensor, rank: int) -> list[Tensor]:
        """Return what is exchanged with all ranks but one, each element once."""
        others = [r for r in range(len(self.runs)) if r != rank]
        if self.has_shares:
            return [piece for r in others for piece in self.pieces(tensor, r)]
        runs = union(run for r in others for run in self.runs[r])
        return [tensor[run.start : run.stop] for run in runs]


Sides = Callable[[int], tuple[Side, Side]]
"""A function from a rank to the sides of what it sends and of what it gets."""


@dataclass(frozen=True)
class Moves:
    """Rows of one tensor on each rank that the ranks of a group send each other.

    All ranks run the same moves, in the same order.
    """

    group: dist.ProcessGroup
    sides: Sides

    @cached_property
    def all_sides(self) -> list[tuple[Side, Side]]:
        return [self.sides(r) for r in range(dist.get_world_size(self.group))]

    @cached_property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def before(self) -> Side:
        return self.all_sides[self.rank][0]

    @property
    def after(self) -> Side:
        return self.all_sides[self.rank][1]

    @cached_property
    def adds(self) -> bool:
        """True if several ranks send a row: the result is their sum."""
        runs = [run for runs in self.after.runs for run in runs]
        return not self.after.has_shares and count(union(runs)) < sum(map(len, runs))

    @cached_property
    def back(self) -> Moves:
        """The moves of the derivative."""
        forth = self.sides

        def sides(rank: int) -> tuple[Side, Side]:
            before, after = forth(rank)
            return after, before

        return Moves(self.group, sides)

    def result(self, own: Tensor, order: tuple[int, ...] = (0, 1, 2, 3)) -> Tensor:
        """Return the tensor that rows arrive in, zeros where no rank sends a row.

        Its dimensions lie in memory in this order.
        """
        before, after = self.before, self.after
        heads = own.size(2) // (len(before.runs) if before.has_shares else 1)
        heads *= len(after.runs) if after.has_shares else 1
        covered = count(union(run for runs in after.runs for run in runs))
        dtype = sum_dtype(own.dtype) if self.adds else own.dtype
        shape = after.rows, own.size(1), heads, own.size(3)
        found = torch.empty_permuted(shape, order, dtype=dtype, device=own.device)
        return found.zero_() if self.adds or covered < after.rows else found

    def put(
        self, found: Tensor, rank: int, arrived: Sequence[Tensor], copy: Copy
    ) -> None:
        """Write rows of a rank to their places, or add them."""
        for place, piece in zip(self.after.pieces(found, rank), arrived, strict=True):
            if self.adds:
                place += piece
            elif place.data_ptr() != piece.data_ptr():
                copy(place, piece)

    def most_bytes(self, own: Tensor) -> int:
        """Return the size of the largest tensor that a rank sends rows of."""
        rows = max(before.rows for before, _ in self.all_sides)
        return rows * own.shape[1:].numel() * own.dtype.itemsize


def run(moves: Sequence[Moves], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of moves of one group. Sums are rounded once."""
    group, device = moves[0].group, tensors[0].device
    sizes = [m.most_bytes(t) for m, t in zip(moves, tensors, strict=True)]
    memory = memory_of(group, device, sum(map(_aligned, sizes)))
    if memory is None:
        results = [m.result(t) for m, t in zip(moves, tensors, strict=True)]
        _send(moves, tensors, results)
    else:
        # Heads first: copies between GPUs are of many neighbouring bytes.
        results = [
            m.result(t, HEADS_FIRST) for m, t in zip(moves, tensors, strict=True)
        ]
        _read(moves, tensors, results, sizes, memory)
    return [r.to(t.dtype) for r, t in zip(results, tensors, strict=True)]


def _read(
    moves: Sequence[Moves],
    tensors: Sequence[Tensor],
    results: Sequence[Tensor],
    sizes: Sequence[int],
    memory: SharedMemory,
) -> None:
    """Show the others this rank's rows in its memory, and read theirs.

    A tensor is read beside the copies of the next one.
    """
    starts = list(accumulate((_aligned(size) for size in sizes), initial=0))
    given = zip(moves, tensors, results, sizes, starts, strict=False)
    with memory.in_turn():
        for m, own, found, _, start in sorted(given, key=lambda x: x[3], reverse=True):
            shown = [
                memory.rows_of(rank, start, (side.rows, *own.shape[1:]), own.dtype)
                for rank, (side, _) in enumerate(m.all_sides)
            ]
            pieces = (
                m.before.pieces_of_others(t, m.rank) for t in (shown[m.rank], own)
            )
            for place, piece in zip(*pieces, strict=True):
                copy(place, piece)
            memory.fence()
            with memory.beside():
                # Each rank begins with its neighbour, so that all links are in use.
                for rank in (*range(m.rank + 1, len(shown)), *range(m.rank)):
                    side, _ = m.all_sides[rank]
                    m.put(found, rank, side.pieces(shown[rank], m.rank), memory.copy)
            if m.adds:
                memory.join()
            m.put(found, m.rank, m.before.pieces(own, m.rank), copy)


def _send(
    moves: Sequence[Moves], tensors: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Exchange messages, one with each other rank for each tensor.

    Rows that are neighbours in a result arrive there.
    """
    ops: list[dist.P2POp] = []
    arrived: list[tuple[Moves, Tensor, int, Sequence[Tensor]]] = []
    for m, own, found in zip(moves, tensors, results, strict=True):
        for rank, runs in enumerate(m.after.runs):
            pieces = m.before.pieces(own, rank)
            if rank == m.rank:
                arrived.append((m, found, rank, pieces))
                continue
            part = _part_of_message(m, own, found, rank)
            received = part.split([*map(len, runs)]) if runs else ()
            arrived.append((m, found, rank, received))
            message = pieces[0] if len(pieces) == 1 else torch.cat([part[:0], *pieces])
            ops += [
                dist.P2POp(op, tensor, group=m.group, group_peer=rank)
                for op, tensor in ((dist.isend, dense(message)), (dist.irecv, part))
                if tensor.numel()
            ]
    with exchange(moves[0].group):
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
    for m, found, rank, pieces in arrived:
        m.put(found, rank, pieces, copy)


def _part_of_message(m: Moves, own: Tensor, found: Tensor, rank: int) -> Tensor:
    """Return where a message arrives: at its place in the result, if it is one."""
    after = m.after
    places = after.pieces(found, rank)
    if len(places) == 1 and places[0].is_contiguous() and not m.adds:
        return places[0]
    heads = found.size(2) // (len(after.runs) if after.has_shares else 1)
    return own.new_empty((count(after.runs[rank]), own.size(1), heads, own.size(3)))


class Moved(torch.autograd.Function):
    """The rows of tensors, moved among ranks.

    Those of tensors without a gradient have none, so that none is computed and moved
    back for them.
    """

    @staticmethod
    def forward(
        ctx: Any, moves: Sequence[Moves], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.moves = moves
        found = run(moves, tensors)
        needs = zip(found, ctx.needs_input_grad[1:], strict=True)
        ctx.mark_non_differentiable(*(rows for rows, need in needs if not need))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        given = [g for g in grads if g is not None]
        back = [m.back for m, g in zip(ctx.moves, grads, strict=True) if g is not None]
        moved: Any = iter(Moved.apply(back, *given) if given else ())
        return None, *(None if g is None else next(moved) for g in grads)


def gather(
    group: dist.ProcessGroup,
    layout: Layout,
    tensors: Sequence[Tensor],
    needs: Sequence[Runs] | None = None,
) -> list[Tensor]:
    """Return the tokens of all ranks in order, given those of this one.

    Or from the first that this rank needs to the last, given the needs of all ranks.
    """
    wanted = needs or [(range(layout.length),)] * layout.size

    def sides(rank: int) -> tuple[Side, Side]:
        runs = layout.ranks[rank]
        sent = tuple(tuple(places(runs, overlap(runs, need))) for need in wanted)
        arriving = [overlap(other, wanted[rank]) for other in layout.ranks]
        needed = union(run for some in arriving for run in some)
        first, end = (needed[0].start, needed[-1].stop) if needed else (0, 0)
        received = tuple(
            tuple(range(run.start - first, run.stop - first) for run in some)
            for some in arriving
        )
        return Side(count(runs), sent), Side(end - first, received)

    return _moved([Moves(group, sides)] * len(tensors), tensors)


def to_heads(
    group: dist.ProcessGroup, layouts: Sequence[Layout], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Return all tokens of this rank's share of the heads, given its own tokens."""
    return _moved([Moves(group, _to_heads(x)) for x in layouts], tensors)


def to_tokens(
    group: dist.ProcessGroup, layout: Layout, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Return all heads of this rank's tokens, given its share of the heads."""
    moves = Moves(group, _to_heads(layout)).back
    return _moved([moves] * len(tensors), tensors)


def _to_heads(layout: Layout) -> Sides:
    def sides(rank: int) -> tuple[Side, Side]:
        runs = layout.ranks[rank]
        here = (tuple(places(runs, runs)),) * layout.size
        return Side(count(runs), here, True), Side(layout.length, layout.ranks)

    return sides


def _moved(moves: Sequence[Moves], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Move the tokens of tensors (B, H, S, D)."""
    rows: Any = Moved.apply(moves, *(t.permute(2, 0, 1, 3) for t in tensors))
    return [found.permute(1, 2, 0, 3) for found in rows]


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy."""
    if tensor.is_contiguous():
        return tensor
    return copy(tensor.new_empty(tensor.shape), tensor)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
