"""Vector clocks: what each role knows of what the others have done.

A clock says for each role, and each barrier, up to which time its doings are known.
See Mattern, "Virtual Time and Global States of Distributed Systems", 1988.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

Clock = dict[Hashable, int]


class Stamp(NamedTuple):
    """When something was done, on the clock of who did it."""

    who: Hashable
    time: int


def join(clock: Clock, other: Clock) -> None:
    """Let a clock know what another does."""
    for who, time in other.items():
        clock[who] = max(time, clock.get(who, 0))


def knows(clock: Clock, stamp: Stamp) -> bool:
    """Whether what was done then has happened before."""
    return clock.get(stamp.who, 0) >= stamp.time
