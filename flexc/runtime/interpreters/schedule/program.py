"""One running program: roles as coroutines, shared memory, and copies in flight."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from xdsl.interpreter import Interpreter, InterpreterFunctions
from xdsl.ir import Operation
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.schedule.synchronization import (
    Barrier,
    Clock,
    CopyIn,
    CopyOut,
    Read,
    Shares,
    SlotState,
    Stamp,
    View,
    Write,
    join,
    knows,
)


class _ClosedError(BaseException):
    """The exception that ends a paused coroutine.

    Handlers of `Exception` do not catch this exception.
    """


class Coroutine:
    """A function on a thread of its own, which runs only between `resume` and a pause.

    `resume` returns when the function pauses or ends, so one thread runs at a time.
    """

    def __init__(self, body: Callable[[], object], name: str):
        self.done = False
        self._body = body
        # Grad mode is a setting of each thread.
        self._grad = torch.is_grad_enabled()
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Run until the next pause or the end; raise the function's exception."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
            if self._error is not None:
                raise self._error

    def pause(self) -> None:
        """Wait until `resume` is called; only the function itself calls `pause`."""
        self._back.release()
        self._go.acquire()
        if self._closing:
            raise _ClosedError

    def close(self) -> None:
        """End the function at its current pause."""
        self._closing = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._closing:
                with torch.set_grad_enabled(self._grad):
                    self._body()
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.done = True
            self._back.release()


class Wait(NamedTuple):
    """A barrier, and the parity of the phase to wait for."""

    barrier: Barrier
    parity: int

    def is_over(self) -> bool:
        """Return True if the current phase has another parity."""
        return self.barrier.phase % 2 != self.parity

    def __str__(self) -> str:
        return f"{self.barrier.name} with parity {self.parity} ({self.barrier})"


@dataclass(eq=False)
class PendingProduct:
    """A matrix product, which reads its operands until the product is complete."""

    value: Tensor
    reads: list[Read]
    complete: bool = False


@dataclass(eq=False)
class Agent:
    """A copy of a role, or the program outside of roles, with its vector clock."""

    name: str
    clock: Clock = field(default_factory=dict)
    coroutine: Coroutine | None = None
    wait: Wait | None = None
    products: list[PendingProduct] = field(default_factory=list)
    copies: list[CopyOut] = field(default_factory=list)
    """The copies out that still read their slots."""
    leaving: list[CopyOut] = field(default_factory=list)
    """The copies out that have read their slots, and land as late as possible."""
    unfenced: list[Write] = field(default_factory=list)
    shared: Counter[Operation] = field(default_factory=Counter)
    """The number of times that this part has executed each `tile.share`."""

    def stamp(self) -> Stamp:
        """Return the current time of this agent."""
        return Stamp(self, self.clock.setdefault(self, 1))

    def release(self) -> Clock:
        """Return the agent's knowledge for other agents, and advance the agent's clock.

        The returned clock does not cover later actions.
        """
        who, time = self.stamp()
        known = dict(self.clock)
        self.clock[who] = time + 1
        return known

    def acquire(self, clock: Clock) -> None:
        """Merge a clock that other agents released."""
        join(self.clock, clock)

    def is_ready(self) -> bool:
        """Return True if the agent waits for nothing, or its wait is over."""
        return self.wait is None or self.wait.is_over()

    def complete_products(self, outstanding: int) -> None:
        """Complete the oldest products until `outstanding` are in flight."""
        while len(self.products) > outstanding:
            product = self.products.pop(0)
            product.complete = True
            for read in product.reads:
                read.end(self.stamp())

    def end_copied_reads(self, outstanding: int) -> None:
        """End the reads of the oldest copies out until `outstanding` still read."""
        while len(self.copies) > outstanding:
            copy = self.copies.pop(0)
            copy.take()
            copy.read.end(self.stamp())
            self.leaving.append(copy)

    def land(self) -> None:
        """Write what copies out have read."""
        for copy in self.leaving:
            copy.store()
        self.leaving.clear()

    def check_written(self) -> None:
        """Raise InterpretationError if a copy out is not awaited as written."""
        if self.copies or self.leaving:
            raise InterpretationError(
                f"expected a wait for written copies before {self.name} reports "
                f"progress, got {len(self.copies) + len(self.leaving)} in flight"
            )

    def fence(self) -> None:
        """Make this agent's writes visible to copies and products."""
        for write in self.unfenced:
            write.fenced = True
        self.unfenced.clear()

    def finish(self) -> None:
        """Raise InterpretationError if a product or a copy out is in flight."""
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


class Interleaving(Protocol):
    """A strategy that chooses the next role to continue or copy to land."""

    eager: bool
    """True to choose at each op of the schedule; False to choose only at waits."""

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """Return one of the given agents and copies, of which at least one exists."""
        ...


class InOrder:
    """A strategy that runs the first ready role; copies land when no role is ready."""

    eager = False

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """Return the first ready agent, else the first copy."""
        return ready[0] if ready else copies[0]


class Shuffled:
    """A strategy with random priorities, which are redrawn at random times.

    So one role may run far ahead of the other roles for a while. See Burckhardt et al.,
    "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010.
    """

    eager = True

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._priorities: dict[Agent | CopyIn, float] = {}

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """Return the agent or copy with the highest priority."""
        if self._random.random() < 1 / 8:
            self._priorities.clear()
        choices = [*ready, *copies]
        for choice in choices:
            self._priorities.setdefault(choice, self._random.random())
        return max(choices, key=self._priorities.__getitem__)


PROGRAM, SEED = "program", "seed"
"""The keys of the interpreter's data."""


class ScheduledProgram:
    """The state of a running program that is not in values."""

    def __init__(self, interleaving: Interleaving):
        self.interleaving = interleaving
        self.main = Agent("the program")
        self.current = self.main
        self.slots: list[SlotState] = []
        self.copies: list[CopyIn] = []
        self.ended: list[Agent] = []
        """The roles that have ended; their copies out land when the program ends."""
        self.shares: dict[tuple[Operation, int], Shares] = {}
        self._turns: dict[int, Barrier] = {}
        self._taken: Counter[int] = Counter()
        """The number of turns that each copy has taken."""

    def run(self, bodies: Sequence[tuple[str, Callable[[], object]]]) -> None:
        """Run the roles with these names concurrently until all have ended."""
        known = self.main.release()
        agents = [Agent(name, dict(known)) for name, _ in bodies]
        try:
            for agent, (name, body) in zip(agents, bodies, strict=True):
                agent.coroutine = Coroutine(body, name)
            self._run_all(agents)
        finally:
            self.current = self.main
            for agent in agents:
                if agent.coroutine is not None:
                    agent.coroutine.close()
        for agent in agents:
            self.main.acquire(agent.release())

    def _run_all(self, agents: Sequence[Agent]) -> None:
        left = list(agents)
        while left:
            self._step(left)
            for agent in list(left):
                if agent.coroutine is not None and agent.coroutine.done:
                    agent.finish()
                    left.remove(agent)
                    self.ended.append(agent)

    def _step(self, agents: Sequence[Agent]) -> None:
        """Continue one role or land one copy; raise InterpretationError on deadlock."""
        ready = [agent for agent in agents if agent.is_ready()]
        if not ready and not self.copies:
            raise InterpretationError(deadlock(agents))
        chosen = self.interleaving.choose(ready, self.copies)
        if isinstance(chosen, CopyIn):
            self.copies.remove(chosen)
            chosen.land()
        elif chosen.coroutine is not None:
            self.current = chosen
            chosen.coroutine.resume()

    def switch(self) -> None:
        """Pause the current role if the interleaving chooses at each op."""
        if self.interleaving.eager and self.current.coroutine is not None:
            self.current.coroutine.pause()

    def wait(self, wait: Wait) -> None:
        """Pause the current role until a phase is over, and merge the phase's clock."""
        agent = self.current
        agent.wait = wait
        while not wait.is_over():
            if agent.coroutine is None:
                self._step([agent])
            else:
                agent.coroutine.pause()
        agent.wait = None
        agent.acquire(wait.barrier.published)

    def share(self, op: Operation, parts: int) -> Shares:
        """Return the tiles of the current execution of an op by the current part."""
        number = self.current.shared[op]
        self.current.shared[op] += 1
        fresh = Shares(Barrier(f"shared tile {number}", parts))
        return self.shares.setdefault((op, number), fresh)

    def take_turn(self, part: int) -> None:
        """Pause the current role, the copy `part`, until it has the turn."""
        self.wait(Wait(self._turn(part), self._taken[part] % 2))
        self._taken[part] += 1

    def pass_turn(self, part: int) -> None:
        """Give the turn to the copy `part`; it orders no accesses of memory."""
        self._turn(part).arrive({})

    def _turn(self, part: int) -> Barrier:
        return self._turns.setdefault(part, Barrier(f"turn of copy {part}", 1))

    def finish(self) -> None:
        """Check that the program ends with nothing in flight and all writes known.

        The remaining copies out are stored. Raise InterpretationError if a check fails.
        """
        self.main.finish()
        passed, taken = sum(t.phase for t in self._turns.values()), self._taken.total()
        if passed > taken + 1:
            raise InterpretationError(
                f"expected all turns but the last one to be taken, got {passed} passed "
                f"and {taken} taken"
            )
        for agent in (*self.ended, self.main):
            agent.land()
        for slot in self.slots:
            write = slot.write
            if write is not None and not knows(self.main.clock, write.stamp):
                raise InterpretationError(
                    f"expected a wait for {write.what} before the kernel ends, got none"
                )


def deadlock(agents: Sequence[Agent]) -> str:
    """Return a message that lists the barrier that each role waits for."""
    waits = "; ".join(f"{agent.name} waits for {agent.wait}" for agent in agents)
    return f"expected a role that can go on, got a deadlock: {waits}"


class _Data(InterpreterFunctions):
    """The key class under which the interpreter stores a program."""


def set_interleaving(interpreter: Interpreter, seed: int | None) -> None:
    """Choose a random interleaving by a seed; None runs roles in order, copies late."""
    interpreter.set_data(_Data, SEED, seed)


@contextmanager
def program(interpreter: Interpreter) -> Iterator[ScheduledProgram]:
    """Run one program of a kernel's grid, and check its state at the end."""
    seed = interpreter.get_data(_Data, SEED, lambda: None)
    running = ScheduledProgram(InOrder() if seed is None else Shuffled(seed))
    interpreter.set_data(_Data, PROGRAM, running)
    yield running
    running.finish()


def running_program(interpreter: Interpreter) -> ScheduledProgram:
    """Return the running program."""
    return interpreter.get_data(_Data, PROGRAM, lambda: ScheduledProgram(InOrder()))


def at_switch(interpreter: Interpreter) -> ScheduledProgram:
    """Let other roles run, and return the program when the current role continues."""
    running = running_program(interpreter)
    running.switch()
    return running


def read_operand(interpreter: Interpreter, value: Tensor | View, what: str) -> Tensor:
    """Return the values of a tile; read the tile now if it is in shared memory."""
    if isinstance(value, Tensor):
        return value
    running = running_program(interpreter)
    (read,) = begin_reads(running, [value], what)
    read.end(running.current.stamp())
    return value.tensor


def begin_reads(
    running: ScheduledProgram, views: Sequence[View], what: str
) -> list[Read]:
    """Begin reads of views, which last until each read is ended."""
    agent = running.current
    what = f"{what} by {agent.name}"
    return [view.slot.begin_read(agent, agent.clock, what) for view in views]
