"""Transfers: moves of tensors' rows, in messages or copied from other GPUs' memory.

A transfer is started and finished, so that others move or are computed in between.
Transfers have derivatives of every order.
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
    """The result, between start and finish."""
    wait: Callable[[], None] | None = None
    """Makes later work on the device wait for rows that are still being copied."""

    @property
    def index(self) -> int:
        """The number of the piece of heads, 0 if there is one."""
        return self.piece[1] if self.piece else 0

    @cached_property
    def back(self) -> Transfer:
        return Transfer(self.group, self.moves.back, self.piece)

    def place(self, own: Tensor) -> Tensor:
        """Return the tensor into which rows of other ranks are copied."""
        # Heads first: copies between GPUs are of many neighbouring bytes.
        make = partial(self.moves.result, own, True)
        if self.piece is None or not self.moves.after.has_shares:
            return make()
        pieces, index = self.piece
        return pieces.take(index, make)

    def finish(self) -> Tensor:
        """Return the result, which later work on the device finds complete."""
        if self.wait:
            self.wait()
        found, self.rows, self.wait = self.rows, None, None
        assert found is not None
        return found


def start(transfers: Sequence[Transfer], tensors: Sequence[Tensor]) -> None:
    """Start the transfers of tensors within one group. Sums are rounded once."""
    group, device = transfers[0].group, tensors[0].device
    pairs = list(zip(transfers, tensors, strict=True))
    sizes = [_aligned(t.moves.most_bytes(own)) for t, own in pairs]
    if memory := memory_of(group, device, sum(sizes)):
        offsets = accumulate(sizes, initial=0)
        given = [(*pair, at) for pair, at in zip(pairs, offsets, strict=False)]
        # Transfers of shares come after those to heads, which found ended ranks.
        with memory.in_turn(is_first=not transfers[0].moves.after.has_shares):
            for _, some in groupby(given, key=lambda x: x[0].index):
                _show_and_copy([*some], memory)
        return
    results = [t.moves.result(own) for t, own in pairs]
    _send(transfers, tensors, results)
    for (transfer, own), found in zip(pairs, results, strict=True):
        transfer.rows = found.to(own.dtype)


def _show_and_copy(
    given: Sequence[tuple[Transfer, Tensor, int]], memory: SharedMemory
) -> None:
    """Show this rank's rows to the others, and start to copy theirs.

    Each tensor is shown from a byte of shared memory on. Copies run beside later work,
    except where rows are added.
    """
    for transfer, own, offset in given:
        m = transfer.moves
        shown = _shown(memory, m, m.rank, own, offset)
        pieces = (m.before.pieces_of_others(t, m.rank) for t in (shown, own))
        for place, piece in zip(*pieces, strict=True):
            copy(place, piece)
    memory.fence()
    results = [transfer.place(own) for transfer, own, _ in given]
    with memory.beside():
        for (transfer, own, offset), found in zip(given, results, strict=True):
            m = transfer.moves
            key = m, own.shape, own.dtype, found.stride()
            make = partial(_blocks, memory, m, own, offset, found)
            # In a tuple, so that None is kept too.
            (blocks,) = memory.copies.get(key, lambda make=make: (make(),))
            if blocks is not None:
                memory.read(blocks, found, offset)
                continue
            for rank in m.others:
                shown = _shown(memory, m, rank, own, offset)
                m.put(found, rank, m.sides[rank][0].pieces(shown, m.rank))
        wait = memory.completion(results)
    for (transfer, own, _), found in zip(given, results, strict=True):
        m = transfer.moves
        if m.adds:
            wait()
        m.put(found, m.rank, m.before.pieces(own, m.rank))
        transfer.rows, transfer.wait = found.to(own.dtype), wait


def _blocks(
    memory: SharedMemory, moves: Moves, own: Tensor, offset: int, found: Tensor
) -> list[tuple[int, Block]] | None:
    """Return the blocks to copy, each with its rank, or None if the driver cannot.

    Their places count from the beginnings of the tensor shown and of the result.
    """
    if moves.adds:
        return None
    result: list[tuple[int, Block]] = []
    for rank in moves.others:
        shown = _shown(memory, moves, rank, own, offset)
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
    memory: SharedMemory, moves: Moves, rank: int, own: Tensor, offset: int
) -> Tensor:
    """Return the tensor that a rank shows in shared memory."""
    rows = moves.sides[rank][0].rows
    return memory.rows_of(rank, offset, (rows, *own.shape[1:]), own.dtype)


def _send(
    transfers: Sequence[Transfer], tensors: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Exchange messages, one with each other rank for each tensor.

    A message whose rows are neighbours in a result is received there.
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


class StartTransfers(torch.autograd.Function):
    """Start transfers of tensors. Return a handle for each, a tensor without elements.

    The handle of a tensor without a gradient has none either, so that none is computed
    and moved back.
    """

    @staticmethod
    def forward(
        ctx: Any, transfers: Sequence[Transfer], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transfers = transfers
        start(transfers, tensors)
        return _results(ctx, [t.new_empty(0) for t in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        return None, *_derived(FinishTransfers, ctx.transfers, grads)


class FinishTransfers(torch.autograd.Function):
    """Return the results of transfers, given their handles."""

    @staticmethod
    def forward(
        ctx: Any, transfers: Sequence[Transfer], *handles: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transfers = transfers
        # Not views, which callers of a function with several results may not change.
        return _results(ctx, [t.finish().data for t in transfers])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        # The gradients that a backward needs first are those of the last tensors.
        found = _derived(StartTransfers, ctx.transfers[::-1], grads[::-1])
        return None, *reversed(found)


def _results(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return results, without a gradient where the tensor has none."""
    ctx.set_materialize_grads(False)
    needs = zip(found, ctx.needs_input_grad[1:], strict=True)
    ctx.mark_non_differentiable(*(rows for rows, need in needs if not need))
    return tuple(found)


def _derived(
    function: Any, transfers: Sequence[Transfer], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Apply a function to the gradients that are not None."""
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
    """Join pieces of heads. Nothing is copied if they lie in one tensor in order."""

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


class PendingTransfer(NamedTuple):
    """A transfer that was started, and its handle."""

    transfer: Transfer
    handle: Tensor


def finish(pending: Sequence[PendingTransfer]) -> list[Tensor]:
    """Return the results (B, H, S, D) of transfers."""
    transfers, handles = zip(*pending, strict=True)
    found: Any = FinishTransfers.apply(transfers, *handles)
    return [rows.movedim(0, -2) for rows in found]


def gather(
    group: dist.ProcessGroup,
    layout: Layout,
    tensors: Sequence[Tensor],
    needs: Sequence[Runs] | None = None,
) -> list[Tensor]:
    """Return the tokens of all ranks in order, given those of this one.

    Given the `needs` of all ranks, return those from the first to the last token that
    this rank needs.
    """
    moves = moves_to_gather(layout, dist.get_rank(group), needs and tuple(needs))
    return finish(_started([Transfer(group, moves) for _ in tensors], tensors))


def to_heads(
    group: dist.ProcessGroup,
    layouts: Sequence[Layout],
    tensors: Sequence[Tensor],
    pieces: int,
) -> list[list[PendingTransfer]]:
    """Start the all-to-all that gives each rank all tokens of its share of the heads.

    Tensors are (B, n, H, S, D), with a share of the heads for each of n ranks. Return
    the transfers of each piece of the heads.
    """
    wholes = [Pieces(pieces) for _ in tensors]
    moves = [moves_to_heads(layout, dist.get_rank(group)) for layout in layouts]
    cut = [Cut.apply(t, pieces) if pieces > 1 else (t,) for t in tensors]
    given = [
        (Transfer(group, m, (whole, i)), some[i])
        for i in range(pieces)
        for m, whole, some in zip(moves, wholes, cut, strict=True)
    ]
    pending = _started(*zip(*given, strict=True))
    starts = range(0, len(pending), len(tensors))
    return [pending[i : i + len(tensors)] for i in starts]


def to_tokens(
    group: dist.ProcessGroup,
    layout: Layout,
    tensors: Sequence[Tensor],
    wholes: Sequence[Pieces],
    index: int,
) -> list[PendingTransfer]:
    """Start the all-to-all that gives each rank all heads of its tokens.

    Tensors are one piece of this rank's share of the heads.
    """
    moves = moves_to_heads(layout, dist.get_rank(group)).back
    transfers = [Transfer(group, moves, (whole, index)) for whole in wholes]
    return _started(transfers, tensors)


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


def _started(
    transfers: Sequence[Transfer], tensors: Sequence[Tensor]
) -> list[PendingTransfer]:
    """Start the transfers of tensors (B, H, S, D)."""
    rows = (t.movedim(-2, 0) for t in tensors)
    handles: Any = StartTransfers.apply(transfers, *rows)
    return [PendingTransfer(*pair) for pair in zip(transfers, handles, strict=True)]


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
