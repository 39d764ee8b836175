"""Memory of GPUs that the ranks of a group on one host read from each other.

Where they cannot, ranks send messages, and `way` says why.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

from flexc.errors import DistributedError
from flexc.runtime.process.recent import Recent

LEAST_READ = 2**20
"""The fewest bytes of the tensors of a call that ranks read from each other: whatever
the size, a turn has a sum over all ranks or a fence, and another fence.
"""

WIDEST = torch.complex128
"""The elements that torch's kernels copy fastest where a tensor is not contiguous."""


@contextmanager
def exchange(group: dist.ProcessGroup) -> Iterator[None]:
    """Raise DistributedError if an exchange within the block fails."""
    try:
        yield
    except RuntimeError as error:
        raise DistributedError(
            f"rank {dist.get_rank(group)} lost the others in an exchange: a rank has "
            "ended, failed alone, or was not there within the group's timeout; this "
            f"rank's backend says: {_first_line(error)[:300]}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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


class Block(NamedTuple):
    """Rows of bytes of a copy, at addresses or at distances from others."""

    to: int
    of: int
    pitch_to: int
    pitch_of: int
    width: int
    height: int


def blocks_of(place: Tensor, source: Tensor) -> list[Block] | None:
    """Return the blocks of a copy, or None if the driver cannot copy it."""
    size = place.dtype.itemsize
    *outer, (width, *steps) = _dims(place, source) or [(1, 1, 1)]
    if steps != [1, 1] or len(outer) > 2:
        return None
    *outer, (height, to, of) = outer or [(1, width, width)]
    if max(to, of) * size > MOST_PITCH:
        return None
    count, next_to, next_of = outer[0] if outer else (1, 0, 0)
    return [
        Block(
            place.data_ptr() + i * next_to * size,
            source.data_ptr() + i * next_of * size,
            to * size,
            of * size,
            width * size,
            height,
        )
        for i in range(count)
    ]


def _dims(place: Tensor, source: Tensor) -> list[tuple[int, int, int]]:
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


class SharedMemory:
    """Memory of each rank's GPU that the others read, torch's symmetric memory.

    A first turn begins with a sum over all ranks, so that the group's watchdog finds
    one that has ended. A fence is a barrier of the GPUs, which takes less time.

    Turns that a graph has captured are in the order of the stream that replays it.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        # Memory is kept by its group, and so must not keep it.
        self._group, self.device = ref(group), device
        self._flag = torch.zeros(1, device=device)
        options: Any = group._get_backend(device).options
        self._timeout = int(options._timeout.total_seconds() * 1000)
        self._last: Any = None
        self._own: Tensor | None = None
        self._refused: tuple[int, str] | None = None
        """The least size that a rank has no memory for, and why."""
        self._handle: Any = None
        self._parts: list[Tensor] = []
        self.copies: Recent[Any] = Recent(64)
        """The blocks of recent copies, for `transfers`."""
        self._is_captured = False
        self._captured: list[Any] = []
        """Outgrown memory that captured graphs read and write."""
        self._engine = torch.cuda.Stream(device)
        self._copied: dict[Any, Sequence[Tensor]] = {}
        self._driver = ctypes.CDLL("libcuda.so.1")
        # Not imported above: builds of torch without torch.distributed have none.
        self._symmetric: Any = import_module("torch.distributed._symmetric_memory")

    @property
    def group(self) -> dist.ProcessGroup:
        group = self._group()
        assert group is not None
        return group

    def reserve(self, size: int) -> str:
        """Have room for this many bytes of each rank, or say why a rank has none.

        All ranks ask for the same, and get the same answer.
        """
        if self._own is not None and self._own.numel() >= size:
            return ""
        if torch.cuda.is_current_stream_capturing():
            return "memory does not grow while a graph is captured"
        if not self._refused or size < self._refused[0]:
            fault = self._grow(size)
            self._refused = (size, fault) if fault else None
        return self._refused[1] if self._refused else ""

    def limits(self) -> str:
        """Say which calls send messages instead."""
        found = f"below {LEAST_READ:,} bytes a call: in messages"
        if self._refused is None:
            return found
        size, fault = self._refused
        return f"{found}; from {size:,} on, too: {fault}"

    def _grow(self, size: int) -> str:
        """Allocate memory of this size, or say why a rank cannot."""
        torch.cuda.synchronize(self.device)
        group, rendezvous = self.group, self._symmetric.rendezvous
        own = _of_each(group, lambda: self._allocate(size))
        if isinstance(own, str):
            return own
        handle = _of_each(group, lambda: rendezvous(own, group))
        if isinstance(handle, str):
            return handle
        if self._is_captured:
            self._captured.append((self._own, self._handle, self._parts))
            self._is_captured = False
        ranks = range(dist.get_world_size(group))
        self._parts = [handle.get_buffer(r, (size,), torch.uint8) for r in ranks]
        self._own, self._handle = own, handle
        return ""

    def _allocate(self, size: int) -> Tensor:
        given: Any = {"dtype": torch.uint8, "device": self.device}
        try:
            return self._symmetric.empty(size, **given)
        except RuntimeError:
            torch.cuda.empty_cache()  # The driver gets back what torch does not use.
            return self._symmetric.empty(size, **given)

    def rows_of(
        self, rank: int, start: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Return a tensor (n, B, ..., D) at a byte of a rank's memory, heads first."""
        end = start + torch.Size(shape).numel() * dtype.itemsize
        rows, *outer, dim = shape
        memory = self._parts[rank][start:end].view(dtype)
        return memory.view(*outer, rows, dim).movedim(-2, 0)

    def read(
        self, blocks: Sequence[tuple[int, Block]], place: Tensor, start: int
    ) -> None:
        """Copy blocks of ranks' memory, from a byte of it on, to a tensor.

        An engine that takes no multiprocessor copies.
        """
        to = place.data_ptr()
        for rank, block in blocks:
            of = self._parts[rank].data_ptr() + start
            self._copy(block._replace(to=to + block.to, of=of + block.of))

    def _copy(self, block: Block) -> None:
        given = _Copy2D(
            dstMemoryType=DEVICE_MEMORY, dstDevice=block.to, dstPitch=block.pitch_to,
            srcMemoryType=DEVICE_MEMORY, srcDevice=block.of, srcPitch=block.pitch_of,
            WidthInBytes=block.width, Height=block.height,
        )  # fmt: skip
        stream = ctypes.c_void_p(self._engine.cuda_stream)
        fault = self._driver.cuMemcpy2DAsync_v2(ctypes.byref(given), stream)
        if fault:
            raise DistributedError(
                f"cuMemcpy2DAsync of rows between GPUs gives CUDA's error {fault}"
            )

    @contextmanager
    def in_turn(self, is_first: bool) -> Iterator[None]:
        """Let what all ranks did with the memory before be done, on all streams.

        The first turn of a forward or backward finds ranks that have ended.
        """
        is_captured = torch.cuda.is_current_stream_capturing()
        if self._last is not None and not is_captured:
            self._last.wait()
        self.join()
        if is_first:
            with exchange(self.group):
                self.group.allreduce([self._flag]).wait()
        else:
            self.fence()
        self._is_captured |= is_captured
        try:
            yield
        except BaseException:
            self.join()  # Tensors that the engine writes are about to be freed.
            raise
        finally:
            if not is_captured:
                self._last = torch.cuda.current_stream().record_event()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let copies begin after what came before, beside what comes after."""
        self._engine.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._engine):
            yield

    def join(self) -> None:
        """Let what comes after wait for what is beside. The next turn does.

        The engine waits first: so it is within the capture if there is one.
        """
        stream = torch.cuda.current_stream()
        self._engine.wait_stream(stream)
        stream.wait_stream(self._engine)
        self._copied.clear()

    def completion(self, found: Sequence[Tensor]) -> Callable[[], None]:
        """Return a function that makes later work wait for copies to tensors.

        The tensors are kept until then, or until the next turn.
        """
        event = self._engine.record_event()
        self._copied[event] = found

        def wait() -> None:
            event.wait()
            self._copied.pop(event, None)

        return wait

    def fence(self) -> None:
        """Make later work wait for all earlier work of all ranks."""
        self._handle.barrier(timeout_ms=self._timeout)


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
        found[device] = _new_memory(group, device)


def memory_of(
    group: dist.ProcessGroup, device: torch.device, size: int
) -> SharedMemory | None:
    """Return memory with room for so many bytes, or None: they are sent."""
    found = _shared.get(group, {}).get(device, "")
    if isinstance(found, str) or size < LEAST_READ:
        return None
    with exchange(group):
        return None if found.reserve(size) else found


def _new_memory(group: dist.ProcessGroup, device: torch.device) -> SharedMemory | str:
    """Return the memory of all ranks of a group, or why there is none."""
    if device.type != "cuda":
        return "ranks are on CPUs"
    if dist.get_world_size(group) == 1:
        return "there is one rank"
    hosts = _of_all(group, socket.gethostname())
    if len(set(hosts)) > 1:
        return "ranks are on several hosts"
    memory = _of_each(group, lambda: SharedMemory(group, device))
    if isinstance(memory, str):
        return memory
    return memory.reserve(LEAST_READ) or memory


T = TypeVar("T")


def _of_each(group: dist.ProcessGroup, make: Callable[[], T]) -> T | str:
    """Return what this rank makes, if each rank can, or why one of them cannot."""
    found, fault = None, ""
    try:
        found = make()
    except (RuntimeError, AttributeError, ImportError, OSError) as error:
        fault = _first_line(error)[:200]
    faults = [fault for fault in _of_all(group, fault) if fault]
    return faults[0] if faults else found  # pyright: ignore[reportReturnType]


def _of_all(group: dist.ProcessGroup, own: str) -> list[str]:
    found = [""] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def way(group: dist.ProcessGroup, device: torch.device, method: str) -> str:
    """Return how rows come to other ranks, in words."""
    if method == "ring":
        return "in messages (a ring)"
    memory = _shared.get(group, {}).get(device, "before the first call")
    if isinstance(memory, str):
        return f"in messages ({memory})"
    return f"read from the other GPUs' memory ({memory.limits()})"


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
