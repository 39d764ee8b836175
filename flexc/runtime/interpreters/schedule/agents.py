"""One copy of a role: what it has started, what it knows, what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.schedule.barriers import Barrier
from flexc.runtime.interpreters.schedule.clocks import Clock, Stamp, join
from flexc.runtime.interpreters.schedule.coroutines import Coroutine
from flexc.runtime.interpreters.schedule.slots import Read, Write
from flexc.runtime.interpreters.schedule.transfers import CopyOut


class Wait(NamedTuple):
    """A barrier and the parity of the phase that is waited for."""

    barrier: Barrier
    parity: int

    def is_over(self) -> bool:
        """Whether the current phase has another parity."""
        return self.barrier.phase % 2 != self.parity

    def __str__(self) -> str:
        return f"{self.barrier.name} with parity {self.parity} ({self.barrier})"


@dataclass(eq=False)
class Product:
    """A matrix product, whose operands are read until it is complete."""

    value: Tensor
    reads: list[Read]
    complete: bool = False


@dataclass(eq=False)
class Agent:
    """Who does things: a copy of a role, or the program outside of roles."""

    name: str
    clock: Clock = field(default_factory=dict)
    coroutine: Coroutine | None = None
    wait: Wait | None = None
    products: list[Product] = field(default_factory=list)
    copies: list[CopyOut] = field(default_factory=list)
    """Copies out that still read their slots."""
    unfenced: list[Write] = field(default_factory=list)

    def stamp(self) -> Stamp:
        """The present time."""
        return Stamp(self, self.clock.setdefault(self, 1))

    def release(self) -> Clock:
        """What is known up to here, for others; what comes later is not in it."""
        who, time = self.stamp()
        known = dict(self.clock)
        self.clock[who] = time + 1
        return known

    def acquire(self, clock: Clock) -> None:
        """Learn what others have released."""
        join(self.clock, clock)

    def is_ready(self) -> bool:
        """Whether it can go on."""
        return self.wait is None or self.wait.is_over()

    def complete_products(self, outstanding: int) -> None:
        """Let the oldest products end, until so many are in flight."""
        while len(self.products) > outstanding:
            product = self.products.pop(0)
            product.complete = True
            for read in product.reads:
                read.end(self.stamp())

    def end_copied_reads(self, outstanding: int) -> list[CopyOut]:
        """Let the oldest copies out end their reads, until so many still read."""
        ended: list[CopyOut] = []
        while len(self.copies) > outstanding:
            copy = self.copies.pop(0)
            copy.take()
            copy.read.end(self.stamp())
            ended.append(copy)
        return ended

    def fence(self) -> None:
        """Make what was written visible to copies and products."""
        for write in self.unfenced:
            write.fenced = True
        self.unfenced.clear()

    def finish(self) -> None:
        """Nothing that was started may be in flight at the end."""
        if self.products:
            raise InterpretationError(
                f"expected {self.name} to end with all products awaited, got "
                f"{len(self.products)} in flight"
            )
        if self.copies:
            raise InterpretationError(
                f"expected {self.name} to end with all copies out awaited, got "
                f"{len(self.copies)} in flight"
            )
