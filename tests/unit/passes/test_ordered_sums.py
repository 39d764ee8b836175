"""Additions to the query's gradient in a fixed order, for any order of execution.

The interpreter runs programs one after another. A run leaves a trace of each program:
what it awaits, adds and reports. The tests then draw how programs with these traces run
beside each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.tile import AwaitProgressOp
from flexc.dialects.tile.schedule import RoleOp
from flexc.errors import ScheduleError
from flexc.runtime.interpreters import host_ops, run_module, tile
from flexc.runtime.interpreters.schedule import synchronization
from tests.support.corpus import CORPUS
from tests.support.pairwise import in_turn
from tests.unit.passes.test_backward_schedule import backward, check, scheduled

LENGTHS = 260, 600
"""Blocks of queries and of keys, the last ones not whole; some keys see no query."""

WITHOUT_ORDER = {
    *("attention_sinks", "checkerboard", "dilated", "prefix_lm", "strided"),
    "nothing",
}
"""Cases whose blocks of queries are not visited in rising order, or have no roles."""


class Event(NamedTuple):
    """What a program awaits, adds to or reports."""

    kind: str
    what: Any
    number: int = 0


@dataclass
class Recorder:
    """The events of each program that reports progress, in the order of launches."""

    programs: list[list[Event]] = field(default_factory=list[list[Event]])

    @contextmanager
    def program(self, run: Callable[..., Any], *args: Any) -> Iterator[Any]:
        self.programs.append([])
        with run(*args) as running:
            yield running
        if not any(event.kind == "report" for event in self.programs[-1]):
            self.programs.pop()

    def note(self, kind: str, what: Any, number: int = 0) -> None:
        self.programs[-1].append(Event(kind, what, number))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()

    def wrapped(module: Any, name: str, note: Callable[..., None]) -> None:
        run = getattr(module, name)

        def noted(*args: Any) -> Any:
            note(*args)
            return run(*args)

        monkeypatch.setattr(module, name, noted)

    def added(
        values: Tensor, memref: Tensor, indices: Sequence[Tensor], _: Any
    ) -> None:
        if values.any():  # Zeros change nothing, in any order.
            found.note("add", tuple(map(int, indices)))

    wrapped(
        tile, "await_progress", lambda _, p, n, __: found.note("await", int(p), int(n))
    )
    wrapped(
        tile, "report_progress", lambda _, p, n: found.note("report", int(p), int(n))
    )
    wrapped(synchronization, "add_tile", added)
    run = host_ops.program

    def program(*args: Any) -> AbstractContextManager[Any]:
        return found.program(run, *args)

    monkeypatch.setattr(host_ops, "program", program)
    return found


class DeadlockError(Exception):
    """No program can go on."""


def additions(
    programs: Sequence[Sequence[Event]], residents: int, seed: int
) -> dict[Any, list[int]]:
    """Return the programs that add to each place, in an order that is drawn.

    `residents` programs run at once; when one ends, the next one starts. The program of
    the highest priority runs as far as it can; priorities change at random times.
    """
    draw = random.Random(seed)
    progress: dict[int, int] = {}
    found: dict[Any, list[int]] = {}
    done, priorities = [0] * len(programs), [0.0] * len(programs)
    while True:
        left = [i for i, events in enumerate(programs) if done[i] < len(events)]
        if not left:
            return found
        if draw.random() < CHANGE:
            priorities = [draw.random() for _ in programs]
        running = left[:residents]
        ready = [i for i in running if not is_waiting(programs[i][done[i]], progress)]
        if not ready:
            raise DeadlockError
        number = max(ready, key=lambda i: priorities[i])
        event = programs[number][done[number]]
        done[number] += 1
        if event.kind == "add":
            found.setdefault(event.what, []).append(number)
        elif event.kind == "report":
            assert event.number >= progress.get(event.what, 0)
            progress[event.what] = event.number


CHANGE = 0.05
"""The probability that priorities change before an event."""


def is_waiting(event: Event, progress: dict[int, int]) -> bool:
    return event.kind == "await" and progress.get(event.what, 0) < event.number


def has_one_order(programs: Sequence[Sequence[Event]]) -> bool:
    """Return True if programs add in the order of launches, however they run."""
    runs = [
        additions(programs, residents, seed)
        for residents in (1, 2, 3, 7, 100)
        for seed in range(6)
    ]
    return all(order == sorted(order) for run in runs for order in run.values())


@pytest.mark.parametrize(("case", "heads"), in_turn(list(CORPUS), [(1, 1), (3, 3)]))
def test_programs_add_in_one_order(
    case: str, heads: tuple[int, int], recorder: Recorder
) -> None:
    module, args, wanted = backward(case, heads, lengths=LENGTHS, in_order=True)
    try:
        kernel = scheduled(module)
    except ScheduleError:
        assert case in WITHOUT_ORDER
        return
    assert [op.label.data for op in kernel.walk() if isinstance(op, RoleOp)] == [
        *("consumer", "producer", "writer")
    ]
    check(run_module(kernel, args, interleaving=1), wanted)
    assert len(recorder.programs) == heads[1] * -(-LENGTHS[1] // 128)
    assert has_one_order(recorder.programs)


@pytest.mark.parametrize("case", ["causal", "dense"])
def test_an_addition_without_a_wait_has_no_order(case: str, recorder: Recorder) -> None:
    module, args, _ = backward(case, (2, 2), lengths=(400, 600), in_order=True)
    kernel = scheduled(module)
    in_loop, after_loop, _ = range(len(waits(kernel)))
    for number in (in_loop, after_loop):
        changed = kernel.clone()
        wait = waits(changed)[number]
        wait.seen.replace_all_uses_with(wait.known)
        wait.detach()
        wait.erase()
        recorder.programs.clear()
        run_module(changed, args)
        assert not has_one_order(recorder.programs)


def test_heads_that_share_keys_have_no_order() -> None:
    module, _, _ = backward("causal", (4, 2), in_order=True)
    with pytest.raises(ScheduleError, match="share keys"):
        scheduled(module)


def test_programs_without_reports_wait_forever(recorder: Recorder) -> None:
    module, args, _ = backward("causal", (2, 2), lengths=(400, 600), in_order=True)
    run_module(scheduled(module), args)
    silent = [[e for e in p if e.kind != "report"] for p in recorder.programs]
    with pytest.raises(DeadlockError):
        has_one_order(silent)


def waits(kernel: ModuleOp) -> list[AwaitProgressOp]:
    return [op for op in kernel.walk() if isinstance(op, AwaitProgressOp)]
