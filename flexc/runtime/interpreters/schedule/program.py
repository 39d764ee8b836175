"""One program while it runs: its roles, its shared memory, its copies in flight."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from torch import Tensor
from xdsl.interpreter import Interpreter, InterpreterFunctions
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters.schedule.agents import Agent, Wait
from flexc.runtime.interpreters.schedule.clocks import knows
from flexc.runtime.interpreters.schedule.coroutines import Coroutine
from flexc.runtime.interpreters.schedule.slots import Read, Slot, View
from flexc.runtime.interpreters.schedule.transfers import CopyIn, CopyOut

# In which order roles go on and copies land.


T = TypeVar("T")


class Interleaving(Protocol):
    """Chooses what happens next."""

    eager: bool
    """Whether to choose at each op of the schedule, or only where a role waits."""

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """One of these, of which there are some."""
        ...

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """Things in the order in which to do them."""
        ...


class InOrder:
    """The first role that can go on; copies land when none can."""

    eager = False

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """The first of all."""
        return ready[0] if ready else copies[0]

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """As they are."""
        return items


class Shuffled:
    """Priorities by chance, drawn anew now and then.

    So one role may be far ahead of the others for a while. See Burckhardt et al.,
    "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010.
    """

    eager = True

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._priorities: dict[Agent | CopyIn, float] = {}

    def choose(
        self, ready: Sequence[Agent], copies: Sequence[CopyIn]
    ) -> Agent | CopyIn:
        """That of the highest priority."""
        if self._random.random() < 1 / 8:
            self._priorities.clear()
        choices = [*ready, *copies]
        for choice in choices:
            self._priorities.setdefault(choice, self._random.random())
        return max(choices, key=self._priorities.__getitem__)

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """By chance."""
        return self._random.sample(items, len(items))


PROGRAM, SEED = "program", "seed"
"""Keys of the interpreter's data."""


class ScheduledProgram:
    """Who runs, and what there is besides values."""

    def __init__(self, interleaving: Interleaving):
        self.interleaving = interleaving
        self.main = Agent("the program")
        self.current = self.main
        self.slots: list[Slot] = []
        self.copies: list[CopyIn] = []
        self.leaving: list[CopyOut] = []
        """Copies out that have read their slots, and land when the program ends."""

    def run(self, bodies: Sequence[tuple[str, Callable[[], object]]]) -> None:
        """Run roles of these names side by side until all have ended."""
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

    def _step(self, agents: Sequence[Agent]) -> None:
        """Let one role go on, or one copy land."""
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
        """Let others go on, if the interleaving is to be chosen here."""
        if self.interleaving.eager and self.current.coroutine is not None:
            self.current.coroutine.pause()

    def wait(self, wait: Wait) -> None:
        """Let the current role go on when a phase is over, and know what that says."""
        agent = self.current
        agent.wait = wait
        while not wait.is_over():
            if agent.coroutine is None:
                self._step([agent])
            else:
                agent.coroutine.pause()
        agent.wait = None
        agent.acquire(wait.barrier.published)

    def finish(self) -> None:
        """A program ends when nothing is in flight and all copies are known of."""
        self.main.finish()
        for copy in self.leaving:
            copy.store()
        for slot in self.slots:
            write = slot.write
            if write is not None and not knows(self.main.clock, write.stamp):
                raise InterpretationError(
                    f"expected a wait for {write.what} before the kernel ends, got none"
                )


def deadlock(agents: Sequence[Agent]) -> str:
    """The message that says who waits for what."""
    waits = "; ".join(f"{agent.name} waits for {agent.wait}" for agent in agents)
    return f"expected a role that can go on, got a deadlock: {waits}"


class _Data(InterpreterFunctions):
    """Whose data a program is."""


def set_interleaving(interpreter: Interpreter, seed: int | None) -> None:
    """Choose orders by chance from a seed, or None: roles in order, copies late."""
    interpreter.set_data(_Data, SEED, seed)


@contextmanager
def program(interpreter: Interpreter) -> Iterator[ScheduledProgram]:
    """Run one program of a kernel's grid, and check how it leaves things."""
    seed = interpreter.get_data(_Data, SEED, lambda: None)
    running = ScheduledProgram(InOrder() if seed is None else Shuffled(seed))
    interpreter.set_data(_Data, PROGRAM, running)
    yield running
    running.finish()


def running_program(interpreter: Interpreter) -> ScheduledProgram:
    """The program that runs."""
    return interpreter.get_data(_Data, PROGRAM, lambda: ScheduledProgram(InOrder()))


def at_switch(interpreter: Interpreter) -> ScheduledProgram:
    """The program, once the current role is to go on."""
    running = running_program(interpreter)
    running.switch()
    return running


def read_operand(interpreter: Interpreter, value: Tensor | View, what: str) -> Tensor:
    """A tile, read from shared memory now if it lies there."""
    if isinstance(value, Tensor):
        return value
    running = running_program(interpreter)
    (read,) = begin_reads(running, [value], what)
    read.end(running.current.stamp())
    return value.tensor()


def begin_reads(
    running: ScheduledProgram, views: Sequence[View], what: str
) -> list[Read]:
    """Begin to read places until their reads are ended."""
    agent = running.current
    what = f"{what} by {agent.name}"
    return [view.slot.begin_read(agent, agent.clock, what) for view in views]
