"""One slot of shared memory, who may read it and who may write it when."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.schedule.clocks import Clock, Stamp, knows


@dataclass(eq=False)
class Write:
    """What put something into a slot."""

    what: str
    stamp: Stamp
    landed: bool
    fenced: bool


@dataclass(eq=False)
class Read:
    """What takes something from a slot; it has no stamp before it has ended."""

    what: str
    who: Hashable
    stamp: Stamp | None = None

    def end(self, stamp: Stamp) -> None:
        """Read nothing more from then on."""
        self.stamp = stamp


@dataclass(eq=False)
class Slot:
    """The numbers of one slot, the last write, and the reads since."""

    name: str
    data: Tensor
    write: Write | None = None
    reads: list[Read] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The slot's bytes, which a copy brings even where it lies outside."""
        return self.data.numel() * self.data.element_size()

    def poison(self) -> None:
        """Let the slot hold nothing."""
        dtype = self.data.dtype
        self.data.fill_(
            torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min
        )

    def begin_read(self, who: Hashable, clock: Clock, what: str) -> Read:
        """Read by somebody who knows so much, or raise if that is a race."""
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
        # Time passes: who knows of the last read of somebody knows of all.
        self.reads = [r for r in self.reads if r.who is not who or r.stamp is None]
        read = Read(what, who)
        self.reads.append(read)
        return read

    def begin_write(self, clock: Clock, write: Write) -> None:
        """Write by somebody who knows so much, or raise if that is a race."""
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
                f"expected a wait for {self.write.what}, {got} over it without"
            )
        self.reads.clear()
        self.write = write


@dataclass(frozen=True)
class View:
    """The place of a slot's tile, or of its transpose."""

    slot: Slot
    transposed: bool = False

    def tensor(self) -> Tensor:
        """The numbers there, whose changes are changes of the slot."""
        return self.slot.data.T if self.transposed else self.slot.data

    def transpose(self) -> View:
        """The same place with rows for columns."""
        return View(self.slot, not self.transposed)
