"""Turns of the copies of a role."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from xdsl.utils.exceptions import InterpretationError

from flexc.codegen.gluon.support import FIRST_TURN
from flexc.passes.hopper.tile_take_turns import MOST_COPIES
from flexc.runtime.interpreters.schedule.program import ScheduledProgram, Shuffled

COPIES, ROUNDS = 3, 4

Turn = Callable[[ScheduledProgram, int], None]


def follow(program: ScheduledProgram, part: int, turn: Turn) -> None:
    """Run the rounds of a copy; the last copy starts the first."""
    if part == COPIES - 1:
        program.pass_turn(0)
    for _ in range(ROUNDS):
        program.take_turn(part)
        turn(program, part)
        program.pass_turn((part + 1) % COPIES)


def run(body: Turn, seed: int) -> None:
    program = ScheduledProgram(Shuffled(seed))
    copies = [(f"copy {n}", partial(body, program, n)) for n in range(COPIES)]
    program.run(copies)


@pytest.mark.parametrize("seed", range(5))
def test_copies_take_turns_in_order(seed: int) -> None:
    order: list[int] = []

    def turn(program: ScheduledProgram, part: int) -> None:
        order.append(part)
        program.switch()
        order.append(part)

    run(partial(follow, turn=turn), seed)
    assert order == [n for n in range(COPIES) for _ in range(2)] * ROUNDS


def test_nobody_has_the_first_turn() -> None:
    with pytest.raises(InterpretationError, match="copy 0 waits for turn of copy 0"):
        run(ScheduledProgram.take_turn, 0)


def test_a_turn_that_is_kept_is_a_deadlock() -> None:
    def keep(program: ScheduledProgram, part: int) -> None:
        if part == COPIES - 1:
            program.pass_turn(0)
        program.take_turn(part)

    with pytest.raises(InterpretationError, match="copy 1 waits for turn of copy 1"):
        run(keep, 0)


def test_turns_that_nobody_takes_are_an_error() -> None:
    program = ScheduledProgram(Shuffled(0))
    program.pass_turn(0)
    program.finish()
    program.pass_turn(0)
    with pytest.raises(InterpretationError, match="got 2 passed and 0 taken"):
        program.finish()


def test_hardware_has_barriers_for_turns() -> None:
    """Triton takes two, and one for each copy and the producer."""
    assert FIRST_TURN.value >= MOST_COPIES + 1 + 2
    assert FIRST_TURN.value + MOST_COPIES <= 16
