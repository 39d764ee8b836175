"""Additions to the query's gradient in a fixed order, for any order of execution.

The interpreter runs programs one after another. A run leaves a trace of each program:
what it awaits, adds and reports. The tests then draw how programs with these traces run
beside each other. An addition counts when it has landed: that a program reports it only
then is checked by the interpreter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from flexc.dialects.tile import AwaitProgressOp
from flexc.dialects.tile.schedule import AwaitOp, RoleOp
from flexc.errors import ScheduleError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.masks.segments import segment_builder
from flexc.runtime.interpreters import host_ops, run_module, tile
from flexc.runtime.interpreters.schedule import synchronization
from flexc.runtime.varlen import packed_mods
from tests.property.test_packed_bounds import MASKS as PACKED
from tests.property.test_packed_bounds import sequences
from tests.support.corpus import CORPUS
from tests.support.pairwise import in_turn
from tests.unit.passes.test_backward_schedule import (
    backward,
    check,
    scheduled,
    sums_matrices,
)

LENGTHS = 260, 600
"""Blocks of queries and of keys, the last ones not whole; some keys see no query."""

WITHOUT_ORDER = {
    *("attention_sinks", "dilated", "prefix_lm", "strided"),
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
            found.note("add", (memref.data_ptr(), *map(int, indices)))

    wrapped(
        tile, "await_progress", lambda _, p, n, __: found.note("await", int(p), int(n))
    )
    wrapped(
        tile, "report_progress", lambda _, p, n: found.note("report", int(p), int(n))
    )
    wrapped(synchronization, "add_tile", added)
    wrapped(tile, "add_tile", added)
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


Pair = tuple[int, int]

SHARING: list[tuple[Pair, Pair]] = [
    ((1, 1), (1, 1)),
    ((1, 1), (3, 3)),
    ((1, 1), (4, 2)),
    ((3, 1), (4, 2)),
]
"""The batches and the heads, of queries and of keys."""


@pytest.mark.parametrize(("case", "sharing"), in_turn(list(CORPUS), SHARING), ids=str)
def test_programs_add_in_one_order(
    case: str, sharing: tuple[Pair, Pair], recorder: Recorder
) -> None:
    batches, heads = sharing
    module, args, wanted = backward(
        case, heads, lengths=LENGTHS, ordered=True, batches=batches
    )
    try:
        kernel = scheduled(module)
    except ScheduleError:
        assert case in WITHOUT_ORDER
        return
    assert case not in WITHOUT_ORDER
    assert [op.label.data for op in kernel.walk() if isinstance(op, RoleOp)] == [
        *("consumer", "producer", "writer")
    ]
    check(run_module(kernel, args, interleaving=1), wanted)
    assert len(recorder.programs) == batches[0] * heads[0] * -(-LENGTHS[1] // 128)
    assert has_one_order(recorder.programs)


MASKS: dict[str, Callable[..., Any]] = {
    "anti-causal": lambda b, h, q, k: q <= k,
    "falling": lambda b, h, q, k: q + k >= 400,
    "turning": lambda b, h, q, k: q >= torch.maximum(k, 300 - k),
    "keys without queries": lambda b, h, q, k: (q >= k) & ((k < 128) | (k >= 256)),
    "chunks": lambda b, h, q, k: q // 100 == k // 70,
    "late in the middle": lambda b, h, q, k: q >= torch.minimum(k, 600 - k),
    "early in the middle": lambda b, h, q, k: q <= (k - 300).abs(),
}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the masks cases of the corpus."""
    for name, mask in MASKS.items():
        case = SimpleNamespace(factory=lambda *_, mask=mask: (None, mask))
        monkeypatch.setitem(CORPUS, name, case)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("lengths", [LENGTHS, (700, 520)])
def test_masks_of_any_bounds(
    name: str, lengths: tuple[int, int], recorder: Recorder
) -> None:
    module, args, wanted = backward(name, (2, 2), lengths=lengths, ordered=True)
    check(run_module(scheduled(module), args), wanted)
    assert has_one_order(recorder.programs)


def positions(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A score that needs the sequence of each key, also in blocks without a mask."""
    return score + (k - q) / 64


@pytest.mark.parametrize("keys", [None, [50, 300, 0, 250, 100]])
@pytest.mark.parametrize("name", ["none", "anticausal", "window_by_sequence"])
def test_packed_sequences(
    name: str,
    keys: list[int] | None,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    score = positions if name == "none" else None
    mods = packed_mods(score, PACKED[name], sequences([130, 0, 70, 300, 200], keys))
    monkeypatch.setitem(CORPUS, name, SimpleNamespace(factory=lambda *_: mods))
    module, args, wanted = backward(name, (2, 2), lengths=(700, 700), ordered=True)
    check(run_module(scheduled(module), args), wanted)
    assert has_one_order(recorder.programs)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("name", ["late in the middle", "early in the middle"])
def test_bounds_that_fall_need_all_waits(
    name: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_builder, "rises", lambda _: True)
    module, args, _ = backward(name, (2, 2), lengths=(700, 620), ordered=True)
    run_module(scheduled(module), args)
    assert not has_one_order(recorder.programs)


WAITS = {"each block": 0, "the last block": 1, "the end": 2}
"""The numbers of the waits of a kernel."""


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("case", "what"),
    [
        *((case, what) for case in ("causal", "dense") for what in list(WAITS)[:2]),
        ("early in the middle", "the end"),
        ("keys without queries", "the end"),
    ],
)
def test_no_wait_can_be_left_out(case: str, what: str, recorder: Recorder) -> None:
    module, args, _ = backward(case, (2, 2), lengths=(700, 620), ordered=True)
    kernel = scheduled(module)
    waits = [op for op in kernel.walk() if isinstance(op, AwaitProgressOp)]
    assert len(waits) == len(WAITS)
    wait = waits[WAITS[what]]
    wait.seen.replace_all_uses_with(wait.known)
    wait.detach()
    wait.erase()
    run_module(kernel, args)
    assert not has_one_order(recorder.programs)


@pytest.mark.parametrize("kind", [AwaitProgressOp, AwaitOp])
def test_heads_that_share_sums_wait_for_each_other(
    kind: type[AwaitProgressOp | AwaitOp], recorder: Recorder
) -> None:
    """Consumers await the head before theirs, and the writer awaits consumers."""
    module, args, _ = backward("causal", (4, 2), ordered=True)
    kernel = scheduled(module)
    run_module(kernel, args)
    assert has_one_order(recorder.programs)
    role = {AwaitProgressOp: "consumer", AwaitOp: "writer"}[kind]
    waits = [op for op in role_of(kernel, role).walk() if isinstance(op, kind)]
    if kind is AwaitOp:
        waits = [op for op in waits if op.operands[0].name_hint == "added"]
    assert len(waits) == 2
    for wait in waits:
        if isinstance(wait, AwaitProgressOp):
            wait.seen.replace_all_uses_with(wait.known)
        wait.detach()
        wait.erase()
    orders: list[bool] = []
    for interleaving in range(8):
        recorder.programs.clear()
        run_module(kernel, args, interleaving=interleaving)
        orders.append(has_one_order(recorder.programs))
    assert not all(orders)


def role_of(kernel: Operation, name: str) -> RoleOp:
    roles = (op for op in kernel.walk() if isinstance(op, RoleOp))
    return next(op for op in roles if op.label.data == name)


def test_segments_that_were_not_merged_have_no_order() -> None:
    module, _, _ = backward("causal", (2, 2), lengths=(400, 600), ordered=True)
    convert = ConvertFlexToBlocksparsePass("gluon")
    passes = pipelines.to_blocksparse(convert)
    kept = tuple(p for p in passes if p.name != "blocksparse-merge-segments")
    for op in list(module.ops):
        if isinstance(op, func.FuncOp) and not sums_matrices(op):
            Rewriter.erase_op(op)
    pipelines.run(kept, Context(), module)
    with pytest.raises(ScheduleError, match="merge-segments"):
        pipelines.run(pipelines.to_tile("gluon"), Context(), module)


def test_programs_without_reports_wait_forever(recorder: Recorder) -> None:
    module, args, _ = backward("causal", (2, 2), lengths=(400, 600), ordered=True)
    run_module(scheduled(module), args)
    silent = [[e for e in p if e.kind != "report"] for p in recorder.programs]
    with pytest.raises(DeadlockError):
        has_one_order(silent)
