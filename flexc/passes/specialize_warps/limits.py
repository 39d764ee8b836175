"""What a multiprocessor has room for."""

from __future__ import annotations

from collections.abc import Iterable

from flexc.dialects.tile.schedule.capacity import RESERVED_BYTES
from flexc.errors import ScheduleError
from flexc.passes.specialize_warps.outputs import Output
from flexc.passes.specialize_warps.rings import Ring

REGISTERS = 65536 // 128
"""Registers of a thread, if one warp group had all of a multiprocessor's."""

PRODUCER_REGISTERS = 24
"""As few as a role can have; it takes a warp group's, though it is one warp."""

MOST_REGISTERS = 240
"""As many as a thread can use; ptxas has 255, in steps of 8."""

LEAST_REGISTERS = 88
"""With fewer no accumulator of use fits."""


def starting_registers(consumers: int, residents: int) -> int:
    """Registers for each thread before roles give some up for others.

    `residents` programs share a multiprocessor; each has a warp group for every
    consumer and one for the producer.
    """
    return REGISTERS // residents // (consumers + 1) // 8 * 8


def consumer_registers(consumers: int, residents: int = 1) -> int:
    """Registers for each thread of a consumer: an equal share of what is left."""
    groups = starting_registers(consumers, residents) * (consumers + 1)
    share = (groups - PRODUCER_REGISTERS) // consumers // 8 * 8
    if share < LEAST_REGISTERS:
        raise ScheduleError(
            f"{consumers} consumers have {share} registers each, which is too few"
        )
    return min(share, MOST_REGISTERS)


def check_shared_memory(
    rings: Iterable[Ring], outputs: Iterable[Output], limit: int, residents: int = 1
) -> None:
    """Raise if slots and barriers do not fit the share of a program.

    `limit` is what one program has that is alone on a multiprocessor.
    """
    needed = sum(r.bytes for r in rings) + sum(o.bytes for o in outputs)
    share = (limit + RESERVED_BYTES) // residents - RESERVED_BYTES
    if needed > share:
        beside = f" for each of {residents} programs" if residents > 1 else ""
        raise ScheduleError(
            f"the schedule needs {needed} bytes of shared memory, and there are "
            f"{share}{beside}"
        )
