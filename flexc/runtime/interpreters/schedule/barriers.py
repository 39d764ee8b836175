"""One barrier: arrivals and bytes that complete its phases, as PTX's mbarriers do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.schedule.clocks import Clock, Stamp, join


@dataclass(eq=False)
class Barrier:
    """A phase is complete after `arrivals` arrivals and all expected bytes."""

    name: str
    arrivals: int
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    started: int = 0
    landed: int = 0
    published: Clock = field(default_factory=dict)
    """What those know who have waited for a phase."""

    _gathered: Clock = field(default_factory=dict)
    _deliveries: list[Callable[[], None]] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"phase {self.phase} has {self.arrived} of {self.arrivals} arrivals"
        missing = self.expected - self.landed
        return f"{text} and lacks {missing} bytes" if missing else text

    def arrive(self, known: Clock, expects: int = 0) -> None:
        """Count an arrival of somebody who knows so much, and bytes to wait for."""
        if self.arrived == self.arrivals:
            raise InterpretationError(
                f"expected {self.arrivals} arrivals in phase {self.phase} of "
                f"{self.name}, got another before its bytes were copied"
            )
        join(self._gathered, known)
        self.arrived += 1
        self.expected += expects
        self._complete()

    def start(self, size: int) -> Stamp:
        """Begin to copy some of the bytes; when the copy is known to be complete."""
        self.started += size
        if self.started > self.expected:
            raise InterpretationError(
                f"expected a tile.expect for the bytes that are copied in phase "
                f"{self.phase} of {self.name}, got {self.expected} expected and "
                f"{self.started} copied"
            )
        return Stamp(self, self.phase + 1)

    def land(self, size: int, deliver: Callable[[], None]) -> None:
        """Bytes have arrived; `deliver` makes them visible when the phase is over."""
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
