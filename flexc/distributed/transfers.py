"""Transfers: moves of tensors' rows, in messages or read from other GPUs' memory.

A tensor departs and arrives, so that others move or are computed in between. Transfers
have derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, groupby
from math import gcd
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flexc.distributed.layouts import Layout, Runs, count
from flexc.distributed.moves import Moves, moves_to_gather, moves_to_heads
from flexc.distributed.shared_memory import (
    Block,
    SharedMemory,
    blocks_of,
    copy,
    exchange,
    memory_of,
)

ALIGNMENT = 256
"""Bytes from tensor to tensor in shared memory, in multiples."""

LEAST_IN_PIECES = 2**29
"""The fewest bytes of a rank's query, key and value whose heads move in two pieces.

With fewer, a second call of attention takes longer than the moves that it hides.
"""


@dataclass(eq=False)
class Pieces:
    """Pieces of heads that arrive in one tensor, so that `join` copies nothing."""

    count: int
    whole: Tensor | None = None
    taken: set[int] = field(default_factory=set)

    def take(self, index: int, make: Callable[[int], Tensor]) -> Tensor:
        """Return the place of a piece."""
        if self.whole is None or index in self.taken:
            self.whole, self.taken = make(self.count), set()
        self.taken.add(index)
        found = self.whole.chunk(self.count, -2)[index]
        if len(self.taken) == self.count:
            self.whole = None
        return found


@dataclass(eq=False)
class Transfer:
    """A tensor whose rows the ranks of a group move."""

    group: dist.ProcessGroup
    moves: Moves
    piece: tuple[Pieces, int] | None = None
    """The place and index of a piece, where a tensor has shares."""
    rows: Tensor | None = None
    """The result, between departure and arrival."""
    wait: Callable[[], None] | None = None
    """Lets what comes after wait for rows that are on their way."""

    @property
    def index(self) -> int:
        """The number of the piece of heads, 0 if there is one."""
        return self.piece[1] if self.piece else 0

    @cached_property
    def back(self) -> Transfer:
        return Transfer(self.group, self.moves.back, self.piece)

    def place(self, own: Tensor) -> Tensor:
        """Return where rows arrive that are read."""
        # Heads first: copies between GPUs are of many neighbouring bytes.
        make = partial(self.moves.result, own, True)
        if self.piece is None or not self.moves.after.has_shares:
            return make()
        pieces, index = self.piece
        return pieces.take(index, make)

    def arrive(self) -> Tensor:
        """Return the result, which later work on the device finds complete."""
        if self.wait:
            self.wait()
        found, self.rows, self.wait = self.rows, None, None
        assert found is not None
        return found


def depart(transfers: Sequence[Transfer], tensors: Sequence[Tensor]) -> None:
    """Begin transfers of one group. Sums are rounded once."""
    group, device = transfers[0].group, tensors[0].device
    pairs = list(zip(transfers, tensors, strict=True))
    sizes = [_aligned(t.moves.most_bytes(own)) for t, own in pairs]
    if memory := memory_of(group, device, sum(sizes)):
        starts = accumulate(sizes, initial=0)
        given = [(*pair, start) for pair, start in zip(pairs, starts, strict=False)]
        # Transfers of shares come after those to heads, which found ended ranks.
        with memory.in_turn(is_first=not transfers[0].moves.after.has_shares):
            for _, some in groupby(given, key=lambda x: x[0].index):
                _read([*some], memory)
        return
    results = [t.moves.result(own) for t, own in pairs]
    _send(transfers, tensors, results)
    for (transfer, own), found in zip(pairs, results, strict=True):
        transfer.rows = found.to(own.dtype)


def _read(given: Sequence[tuple[Transfer, Tensor, int]], memory: SharedMemory) -> None:
    """Show the others this rank's rows, from a byte of its memory on, and read theirs.

    They are read beside what comes after, but for sums.
    """
    for transfer, own, start in given:
        m = transfer.moves
        shown = _shown(memory, m, m.rank, own, start)
        pieces = (m.before.pieces_of_others(t, m.rank) for t in (shown, own))
        for place, piece in zip(*pieces, strict=True):
            copy(place, piece)
    memory.fence()
    results = [transfer.place(own) for transfer, own, _ in given]
    with memory.beside():
        for (transfer, own, start), found in zip(given, results, strict=True):
            m = transfer.moves
            key = m, own.shape, own.dtype, found.stride()
            make = partial(_blocks, memory, m, own, start, found)
            # Within a tuple: that the driver copies none is kept, too.
            (blocks,) = memory.copies.get(key, lambda make=make: (make(),))
            if blocks is not None:
                memory.read(blocks, found, start)
                continue
            for rank in m.others:
                shown = _shown(memory, m, rank, own, start)
                m.put(found, rank, m.sides[rank][0].pieces(shown, m.rank))
        wait = memory.arrival(results)
    for (transfer, own, _), found in zip(given, results, strict=True):
        m = transfer.moves
        if m.adds:
            wait()
        m.put(found, m.rank, m.before.pieces(own, m.rank))
        transfer.rows, transfer.wait = found.to(own.dtype), wait


def _blocks(
    memory: SharedMemory, moves: Moves, own: Tensor, start: int, found: Tensor
) -> list[tuple[int, Block]] | None:
    """Return the blocks that are read from each rank, from the start of what it shows
    to the start of the result, or None if the driver cannot copy them.
    """
    if moves.adds:
        return None
    result: list[tuple[int, Block]] = []
    for rank in moves.others:
        shown = _shown(memory, moves, rank, own, start)
        pieces = moves.sides[rank][0].pieces(shown, moves.rank)
        places = moves.after.pieces(found, rank)
        for place, piece in zip(places, pieces, strict=True):
            blocks = blocks_of(place, piece)
            if blocks is None:
                return None
            result += [
                (
                    rank,
                    b._replace(to=b.to - found.data_ptr(), of=b.of - shown.data_ptr()),
                )
                for b in blocks
            ]
    return result


def _shown(
    memory: SharedMemory, moves: Moves, rank: int, own: Tensor, start: int
) -> Tensor:
    """Return the tensor that a rank shows."""
    rows = moves.sides[rank][0].rows
    return memory.rows_of(rank, start, (rows, *own.shape[1:]), own.dtype)


def _send(
    transfers: Sequence[Transfer], tensors: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Exchange messages, one with each other rank for each tensor.

    Rows that are neighbours in a result arrive there.
    """
    ops: list[dist.P2POp] = []
    arrived: list[tuple[Moves, Tensor, int, Sequence[Tensor]]] = []
    group = transfers[0].group
    for transfer, own, found in zip(transfers, tensors, results, strict=True):
        m = transfer.moves
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
                dist.P2POp(op, tensor, group=group, group_peer=rank)
                for op, tensor in ((dist.isend, dense(message)), (dist.irecv, part))
                if tensor.numel()
            ]
    with exchange(group):
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
    for m, found, rank, pieces in arrived:
        m.put(found, rank, pieces)


def _part_of_message(m: Moves, own: Tensor, found: Tensor, rank: int) -> Tensor:
    """Return where a message arrives: at its place in the result, if it is one."""
    after = m.after
    places = after.pieces(found, rank)
    if len(places) == 1 and places[0].is_contiguous() and not m.adds:
        return places[0]
    shape = after.share(found, rank).shape[1:]
    return own.new_empty((count(after.runs[rank]), *shape))


class Departed(torch.autograd.Function):
    """Tokens, without elements, of tensors on their way to other ranks.

    Those of tensors without a gradient have none, so that none is computed and moved
    back for them.
    """

    @staticmethod
    def forward(
        ctx: Any, transfers: Sequence[Transfer], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transfers = transfers
        depart(transfers, tensors)
        return _results(ctx, [t.new_empty(0) for t in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        return None, *_derived(Arrived, ctx.transfers, grads)


class Arrived(torch.autograd.Function):
    """The rows of tensors that have arrived, given their tokens."""

    @staticmethod
    def forward(
        ctx: Any, transfers: Sequence[Transfer], *tokens: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transfers = transfers
        # Not views, which callers of a function with several results may not change.
        return _results(ctx, [t.arrive().data for t in transfers])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        # A backward needs the gradients of what arrived last first.
        found = _derived(Departed, ctx.transfers[::-1], grads[::-1])
        return None, *reversed(found)


def _results(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return results; those of tensors without a gradient have none."""
    ctx.set_materialize_grads(False)
    needs = zip(found, ctx.needs_input_grad[1:], strict=True)
    ctx.mark_non_differentiable(*(rows for rows, need in needs if not need))
    return tuple(found)


def _derived(
    function: Any, transfers: Sequence[Transfer], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Apply a function to the gradients that there are."""
    given = [g for g in grads if g is not None]
    pairs = zip(transfers, grads, strict=True)
    back = [t.back for t, g in pairs if g is not None]
    found: Any = iter(function.apply(back, *given) if given else ())
    return [None if g is None else next(found) for g in grads]


class Cut(torch.autograd.Function):
    """Pieces of the heads of a tensor (B, n, H, S, D)."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, pieces: int) -> tuple[Tensor, ...]:
        return whole.chunk(pieces, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore
        return Joined.apply(*grads), None


class Joined(torch.autograd.Function):
    """The tensor of pieces of heads, which are not copied if they lie as in it."""

    @staticmethod
    def forward(ctx: Any, *pieces: Tensor) -> Tensor:
        ctx.count = len(pieces)
        first = pieces[0]
        storage = first.untyped_storage()
        step = first.size(2) * first.stride(2)
        for i, piece in enumerate(pieces):
            place = first.storage_offset() + i * step, first.stride()
            is_there = piece.untyped_storage().data_ptr() == storage.data_ptr()
            if not is_there or (piece.storage_offset(), piece.stride()) != place:
                return torch.cat(pieces, 2)
        shape = *first.shape[:2], len(pieces) * first.size(2), *first.shape[3:]
        # Not a view: callers may change it. Nothing reads the pieces later.
        return first.new_empty(0).set_(
            storage, first.storage_offset(), shape, first.stride()
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore
        return Cut.apply(grad, ctx.count)


class Coming(NamedTuple):
    """A tensor on its way to this rank."""

    transfer: Transfer
    token: Tensor


def arrive(coming: Sequence[Coming]) -> list[Tensor]:
    """Return tensors (B, H, S, D) that have arrived."""
    transfers, tokens = zip(*coming, strict=True)
    found: Any = Arrived.apply(transfers, *tokens)
    return [rows.movedim(0, -2) for rows in found]


def gather(
    group: dist.ProcessGroup,
    layout: Layout,
    tensors: Sequence[Tensor],
    needs: Sequence[Runs] | None = None,
) -> list[Tensor]:
    """Return the tokens of all ranks in order, given those of this one.

    Or from the first that this rank needs to the last, given the needs of all ranks.
    """
    moves = moves_to_gather(layout, dist.get_rank(group), needs and tuple(needs))
    return arrive(_departed([Transfer(group, moves) for _ in tensors], tensors))


def to_heads(
    group: dist.ProcessGroup,
    layouts: Sequence[Layout],
    tensors: Sequence[Tensor],
    pieces: int,
) -> list[list[Coming]]:
    """Let all tokens of this rank's share of the heads come, given its own tokens.

    Tensors are (B, n, H, S, D), with a share for each of n ranks. They come in pieces
    of the heads.
    """
    wholes = [Pieces(pieces) for _ in tensors]
    moves = [moves_to_heads(layout, dist.get_rank(group)) for layout in layouts]
    cut = [Cut.apply(t, pieces) if pieces > 1 else (t,) for t in tensors]
    given = [
        (Transfer(group, m, (whole, i)), some[i])
        for i in range(pieces)
        for m, whole, some in zip(moves, wholes, cut, strict=True)
    ]
    coming = _departed(*zip(*given, strict=True))
    return [coming[i : i + len(tensors)] for i in range(0, len(coming), len(tensors))]


def to_tokens(
    group: dist.ProcessGroup,
    layout: Layout,
    tensors: Sequence[Tensor],
    wholes: Sequence[Pieces],
    index: int,
) -> list[Coming]:
    """Let all shares of this rank's tokens come, given a piece of its own share."""
    moves = moves_to_heads(layout, dist.get_rank(group)).back
    transfers = [Transfer(group, moves, (whole, index)) for whole in wholes]
    return _departed(transfers, tensors)


def pieces_of(
    group: dist.ProcessGroup,
    layouts: Sequence[Layout],
    tensors: Sequence[Tensor],
    heads: int,
) -> int:
    """Return 2 if heads move in two pieces, each beside the other's attention, else 1.

    `heads` are those of keys that each rank gets. All ranks return the same.
    """
    sizes = (
        max(layout.lengths) * t.shape[:2].numel() * t.size(3) * t.dtype.itemsize
        for layout, t in zip(layouts, tensors, strict=True)
    )
    size = sum(2 * _aligned(-(-size // 2)) for size in sizes)
    if size < LEAST_IN_PIECES or memory_of(group, tensors[0].device, size) is None:
        return 1
    return gcd(heads, 2)


def _departed(transfers: Sequence[Transfer], tensors: Sequence[Tensor]) -> list[Coming]:
    """Let the tokens of tensors (B, H, S, D) depart."""
    tokens: Any = Departed.apply(transfers, *(t.movedim(-2, 0) for t in tensors))
    return [Coming(*pair) for pair in zip(transfers, tokens, strict=True)]


def join(pieces: Sequence[Tensor]) -> Tensor:
    """Return the tensor (B, n, H, S, D) of pieces of its heads."""
    if len(pieces) == 1:
        return pieces[0]
    found: Any = Joined.apply(*pieces)
    return found


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy."""
    if tensor.is_contiguous():
        return tensor
    return copy(tensor.new_empty(tensor.shape), tensor)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
