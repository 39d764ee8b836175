"""Moves of rows between ranks: in messages, or read from the memory of other GPUs.

Moves have derivatives of every order.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor

from flexc.distributed.layouts import Layout, Runs, count, overlap, places, union
from flexc.errors import DistributedError
from flexc.runtime.inputs.tensor_facts import sum_dtype

LEAST_READ = 2**20
"""The fewest bytes of a tensor that ranks read from each other. A message takes less
time than the two fences around a reading, about 30 us each.
"""

ALIGNMENT = 256
"""Bytes from tensor to tensor in shared memory, in multiples."""

WIDEST = torch.complex128
"""The elements that torch's kernels copy fastest where a tensor is not contiguous."""


HEADS_FIRST = (1, 2, 0, 3)
"""The order in memory of rows (S, B, H, D) that are contiguous as (B, H, S, D)."""

Copy = Callable[[Tensor, Tensor], Tensor]
"""A function that copies to its first argument, and returns it."""


@contextmanager
def exchange(group: dist.ProcessGroup) -> Iterator[None]:
    """Raise DistributedError if an exchange within the block fails."""
    try:
        yield
    except RuntimeError as error:
        raise DistributedError(
            f"rank {dist.get_rank(group)} lost the others in an exchange: a rank has "
            "ended, failed alone, or was not there within the group's timeout; this "
            f"rank's backend says: {str(error).strip().splitlines()[0][:300]}"
        ) from error


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

    @property
    def adds(self) -> bool:
        """True if several ranks send a row: the result is their sum."""
        runs = [run for runs in self.after.runs for run in runs]
        return not self.after.has_shares and count(union(runs)) < sum(map(len, runs))

    @property
    def back(self) -> Moves:
        """The moves of the derivative."""

        def sides(rank: int) -> tuple[Side, Side]:
            before, after = self.sides(rank)
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
    memory = _shared.get(group, {}).get(device, "")
    if isinstance(memory, str) or sum(sizes) < LEAST_READ:
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
    memory.reserve(starts[-1])
    given = zip(moves, tensors, results, sizes, starts, strict=False)
    with memory.in_turn():
        memory.fence()  # All ranks have read what it held before.
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
    """The rows of tensors, moved among ranks."""

    @staticmethod
    def forward(
        ctx: Any, moves: Sequence[Moves], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.moves = moves
        return tuple(run(moves, tensors))

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


class SharedMemory(Protocol):
    """Memory of each rank that the others read, in the order of a stream."""

    def reserve(self, size: int) -> None:
        """Have room for this many bytes of each rank. All ranks ask for the same."""
        ...

    def rows_of(
        self, rank: int, start: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Return a tensor (n, B, H, D) at a byte of a rank's memory, heads first."""
        ...

    def copy(self, place: Tensor, source: Tensor) -> Tensor:
        """Copy rows (n, B, H, D) that may be another rank's."""
        ...

    def in_turn(self) -> AbstractContextManager[None]:
        """Let work of other streams on the memory come before, or after."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Let copies begin after what came before, beside what comes after."""
        ...

    def join(self) -> None:
        """Let what comes after wait for what is beside. The end of `in_turn` does."""
        ...

    def fence(self) -> None:
        """Let what comes after wait for what all ranks have done before."""
        ...


DEVICE_MEMORY = 2
"""The driver's CU_MEMORYTYPE_DEVICE."""


MOST_PITCH = 2**31 - 1
"""The most bytes from row to row that the driver copies."""


class _Copy2D(ctypes.Structure):
    """The driver's CUDA_MEMCPY2D."""

    _fields_ = [
        (f"{side}{name}", kind)
        for side in ("src", "dst")
        for name, kind in (
            ("XInBytes", ctypes.c_size_t),
            ("Y", ctypes.c_size_t),
            ("MemoryType", ctypes.c_uint),
            ("Host", ctypes.c_void_p),
            ("Device", ctypes.c_uint64),
            ("Array", ctypes.c_void_p),
            ("Pitch", ctypes.c_size_t),
        )
    ] + [("WidthInBytes", ctypes.c_size_t), ("Height", ctypes.c_size_t)]


def _blocks(place: Tensor, source: Tensor) -> list[tuple[int, int, int]]:
    """Return the sizes and the two strides of a copy, the innermost last, neighbouring
    dimensions joined where they are so in both tensors.
    """
    dims = zip(place.shape, place.stride(), source.stride(), strict=True)
    found: list[tuple[int, int, int]] = []
    for size, to, of in sorted((d for d in dims if d[0] != 1), key=lambda d: -d[1]):
        if found and found[-1][1:] == (size * to, size * of):
            size *= found.pop()[0]
        found.append((size, to, of))
    return found


class PeerMemory:
    """Memory of GPUs that reach each other's, by torch's symmetric memory.

    A fence is a sum over all ranks, so that a rank which ends is found as in messages.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        self.group, self.device = group, device
        self._flag = torch.zeros(1, device=device)
        self._last: Any = None
        self._parts: list[Tensor] = []
        self._engine = torch.cuda.Stream(device)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.reserve(LEAST_READ)

    def reserve(self, size: int) -> None:
        if self._parts and self._parts[0].numel() >= size:
            return
        if self._parts:
            torch.cuda.synchronize(self.device)
        own = symmetric_memory.empty(size, dtype=torch.uint8, device=self.device)
        handle = symmetric_memory.rendezvous(own, self.group)
        ranks = range(dist.get_world_size(self.group))
        self._parts = [handle.get_buffer(r, (size,), torch.uint8) for r in ranks]
        self._owned = own

    def rows_of(
        self, rank: int, start: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        end = start + torch.Size(shape).numel() * dtype.itemsize
        n, batch, heads, dim = shape
        memory = self._parts[rank][start:end].view(dtype)
        return memory.view(batch, heads, n, dim).permute(2, 0, 1, 3)

    def copy(self, place: Tensor, source: Tensor) -> Tensor:
        """Copy by an engine that takes no multiprocessor, where blocks are wide."""
        *outer, (width, *steps) = _blocks(place, source) or [(1, 1, 1)]
        if steps != [1, 1] or len(outer) > 2:
            return copy(place, source)
        *outer, (height, to, of) = outer or [(1, width, width)]
        if max(to, of) * place.dtype.itemsize > MOST_PITCH:
            return copy(place, source)
        count, *starts = outer[0] if outer else (1, 0, 0)
        size = place.dtype.itemsize
        for i in range(count):
            at = [
                t.data_ptr() + i * start * size
                for t, start in zip((place, source), starts, strict=True)
            ]
            self._copy_block(at, (to * size, of * size), width * size, height)
        return place

    def _copy_block(
        self, at: Sequence[int], pitch: Sequence[int], width: int, height: int
    ) -> None:
        """Copy rows of bytes between two places."""
        given = _Copy2D(
            dstMemoryType=DEVICE_MEMORY, dstDevice=at[0], dstPitch=pitch[0],
            srcMemoryType=DEVICE_MEMORY, srcDevice=at[1], srcPitch=pitch[1],
            WidthInBytes=width, Height=height,
        )  # fmt: skip
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        fault = self._driver.cuMemcpy2DAsync_v2(ctypes.byref(given), stream)
        if fault:
            raise DistributedError(
                f"cuMemcpy2DAsync of rows between GPUs gives CUDA's error {fault}"
            )

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        is_captured = torch.cuda.is_current_stream_capturing()
        if self._last is not None and not is_captured:
            self._last.wait()
        yield
        self.join()
        if not is_captured:
            self._last = torch.cuda.current_stream().record_event()

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._engine.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._engine):
            yield

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._engine)

    def fence(self) -> None:
        with exchange(self.group):
            # dist.all_reduce of the same takes a host much longer.
            self.group.allreduce([self._flag]).wait()


_shared: WeakKeyDictionary[
    dist.ProcessGroup, dict[torch.device, SharedMemory | str]
] = WeakKeyDictionary()
"""By a group and a rank's device: the memory, or why the ranks have none."""


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let NCCL connect a group, and find whether its ranks read each other's memory.

    All ranks must take part in a first exchange, and in those of a ring only ranks do
    that send or receive.
    """
    found = _shared.setdefault(group, {})
    if device in found:
        return
    with exchange(group):
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        found[device] = _peer_memory(group, device)


def _peer_memory(group: dist.ProcessGroup, device: torch.device) -> PeerMemory | str:
    """Return the memory of all ranks of a group, or why there is none."""
    if device.type != "cuda":
        return "ranks are on CPUs"
    hosts = _of_all(group, socket.gethostname())
    if len(set(hosts)) > 1:
        return "ranks are on several hosts"
    try:
        memory, fault = PeerMemory(group, device), ""
    except (RuntimeError, AttributeError, OSError) as error:
        memory, fault = None, f"{error}".strip().splitlines()[0][:200]
    faults = [fault for fault in _of_all(group, fault) if fault]
    return faults[0] if faults or memory is None else memory


def _of_all(group: dist.ProcessGroup, own: str) -> list[str]:
    found = [""] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def way(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return how rows come to other ranks, in words."""
    memory = _shared.get(group, {}).get(device, "before the first call")
    if isinstance(memory, str):
        return f"in messages ({memory})"
    return "read from the other GPUs' memory"


class Dense(torch.autograd.Function):
    """A contiguous copy, made 16 bytes at a time where the memory allows it.

    The gradient of the copy is the tensor's.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return copy(tensor.new_empty(tensor.shape), tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return grad


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def dense(tensor: Tensor) -> Any:
    """Return the tensor, or a contiguous copy."""
    return tensor if tensor.is_contiguous() else Dense.apply(tensor)


def copy(place: Tensor, source: Tensor) -> Tensor:
    """Copy a tensor of the same dtype, 16 bytes at a time where memory allows it."""
    if is_wide(place) and is_wide(source):
        place.view(WIDEST).copy_(source.view(WIDEST))
    else:
        place.copy_(source)
    return place


def is_wide(tensor: Tensor) -> bool:
    """Return True if the rows of a tensor are whole elements of 16 bytes."""
    size = tensor.dtype.itemsize
    wide = WIDEST.itemsize // size
    starts = tensor.data_ptr() // size, tensor.storage_offset()
    steps = (*starts, *tensor.stride()[:-1], tensor.size(-1))
    return tensor.stride(-1) == 1 and not any(step % wide for step in steps)
