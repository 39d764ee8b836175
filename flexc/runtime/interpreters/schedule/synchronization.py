"""Happens-before tracking in a schedule: vector clocks, slots, barriers and copies.

A clock holds, for each agent and barrier, the time up to which its actions are known.
An agent is one copy of a role, or the program outside of roles.
See Mattern, "Virtual Time and Global States of Distributed Systems", 1988.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.memory import add_tile, store_tile, unspecified

Clock = dict[Hashable, int]


class Stamp(NamedTuple):
    """The time of an action, on the clock of the agent or barrier `who`."""

    who: Hashable
    time: int


def join(clock: Clock, other: Clock) -> None:
    """Merge another clock into a clock."""
    for who, time in other.items():
        clock[who] = max(time, clock.get(who, 0))


def knows(clock: Clock, stamp: Stamp) -> bool:
    """Return True if a clock shows that the action at a stamp happened before."""
    return clock.get(stamp.who, 0) >= stamp.time


@dataclass(eq=False)
class Write:
    """A write to a slot."""

    what: str
    stamp: Stamp
    landed: bool
    fenced: bool


@dataclass(eq=False)
class Read:
    """A read of a slot; the stamp is None until the read has ended."""

    what: str
    who: Hashable
    stamp: Stamp | None = None

    def end(self, stamp: Stamp) -> None:
        """End the read at a stamp."""
        self.stamp = stamp


@dataclass(eq=False)
class SlotState:
    """The values of one slot, the last write, and the reads since that write."""

    name: str
    data: Tensor
    write: Write | None = None
    reads: list[Read] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The slot's size in bytes; a copy transfers all bytes, even outside of the
        tensor.
        """
        return self.data.numel() * self.data.element_size()

    def poison(self) -> None:
        """Fill the slot with values that reveal any use."""
        self.data.copy_(unspecified((), self.data.dtype))

    def begin_read(self, who: Hashable, clock: Clock, what: str) -> Read:
        """Begin a read by `who` with this clock; raise an error on a race."""
        got = f"got {what} of {self.name}"
        if self.write is None:
            raise InterpretationError(f"expected a slot that was written, {got}")
        if not self.write.landed:
            raise InterpretationError(
                f"expected {self.write.what} to be complete, {got} before"
            )
        if not knows(clock, self.write.stamp):
            raise InterpretationError(
                f"expected a wait for {self.write.what}, {got} without"
            )
        if not self.write.fenced:
            raise InterpretationError(
                f"expected a tile.fence_copies after {self.write.what}, {got} without"
            )
        # Knowing the last read of an agent implies knowing all earlier reads of the
        # agent.
        self.reads = [r for r in self.reads if r.who is not who or r.stamp is None]
        read = Read(what, who)
        self.reads.append(read)
        return read

    def begin_write(self, clock: Clock, write: Write) -> None:
        """Begin a write with this clock; raise an error on a race."""
        got = f"got {write.what}"
        for read in self.reads:
            if read.stamp is None:
                raise InterpretationError(
                    f"expected {read.what} of {self.name} to be complete, {got} before"
                )
            if not knows(clock, read.stamp):
                raise InterpretationError(
                    f"expected a wait for {read.what} of {self.name}, {got} without"
                )
        if self.write is not None and not knows(clock, self.write.stamp):
            raise InterpretationError(
                f"expected a wait for {self.write.what}, {got} over it"
            )
        self.reads.clear()
        self.write = write


@dataclass(frozen=True)
class View:
    """A part of a slot's memory, such as its transpose or some columns."""

    slot: SlotState
    tensor: Tensor
    """The part's values, a view of the slot's memory."""


@dataclass(eq=False)
class Barrier:
    """A barrier, whose phase is complete after all arrivals and all expected bytes."""

    name: str
    arrivals: int
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    started: int = 0
    landed: int = 0
    published: Clock = field(default_factory=dict)
    """The knowledge that agents gain by waiting for a phase."""

    _gathered: Clock = field(default_factory=dict)
    _deliveries: list[Callable[[], None]] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"phase {self.phase} has {self.arrived} of {self.arrivals} arrivals"
        missing = self.expected - self.landed
        return f"{text} and lacks {missing} bytes" if missing else text

    def arrive(self, known: Clock, expects: int = 0) -> None:
        """Count an arrival of an agent with this clock, and add bytes to expect.

        Raise InterpretationError if the phase already has all arrivals.
        """
        if self.arrived == self.arrivals:
            raise InterpretationError(
                f"expected {self.arrivals} arrivals in phase {self.phase} of "
                f"{self.name}, got another before all bytes of the phase were copied"
            )
        join(self._gathered, known)
        self.arrived += 1
        self.expected += expects
        self._complete()

    def start(self, size: int) -> Stamp:
        """Begin to copy `size` bytes; return the stamp of the copy's completion.

        Raise InterpretationError if the phase does not expect as many bytes.
        """
        self.started += size
        if self.started > self.expected:
            raise InterpretationError(
                f"expected a tile.expect for the bytes that are copied in phase "
                f"{self.phase} of {self.name}, got {self.expected} expected and "
                f"{self.started} copied"
            )
        return Stamp(self, self.phase + 1)

    def land(self, size: int, deliver: Callable[[], None]) -> None:
        """Count landed bytes; `deliver` is called when the phase is complete."""
        self.landed += size
        self._deliveries.append(deliver)
        self._complete()

    def _complete(self) -> None:
        if self.arrived < self.arrivals or self.landed < self.expected:
            return
        for deliver in self._deliveries:
            deliver()
        self.phase += 1
        self._gathered[self] = self.phase
        join(self.published, self._gathered)
        self._gathered, self._deliveries = {}, []
        self.arrived = self.expected = self.started = self.landed = 0


@dataclass(eq=False)
class CopyIn:
    """A tile in flight to a slot."""

    tile: Tensor
    slot: SlotState
    write: Write
    barrier: Barrier

    def land(self) -> None:
        """Land all bytes, which become visible when the barrier's phase is complete."""
        self.barrier.land(self.slot.size, self._deliver)

    def _deliver(self) -> None:
        self.slot.data.copy_(self.tile)
        self.write.landed = True


@dataclass(eq=False)
class CopyOut:
    """A slot's tile in flight to a memref, which lands as late as possible."""

    read: Read
    tile: Tensor
    memref: Tensor
    indices: Sequence[Tensor]
    adds: bool = False

    def take(self) -> None:
        """Read the slot, which may change afterwards."""
        self.tile = self.tile.clone()

    def store(self) -> None:
        """Write or add the elements that lie inside the memref."""
        checked = tuple(range(self.tile.dim()))
        put = add_tile if self.adds else store_tile
        put(self.tile, self.memref, self.indices, checked)


@dataclass(eq=False)
class Shares:
    """The tiles that parts share in one execution of a `tile.share`."""

    given: Barrier
    """A barrier at which each part arrives with its tile."""
    values: dict[int, Tensor] = field(default_factory=dict)
