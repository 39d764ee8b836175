"""Into how many parts the rows are taken that sums by column are made of."""

from __future__ import annotations

IDLE = 0.15
"""The share of the threads' time that may be lost, as programs do not come out even."""

PER_THREAD = 3
"""Programs for each thread, at most, where there are parts: each has its own sums."""


def parts_for(heads: int, threads: int) -> int:
    """As few as leave no thread idle for long, of each of the heads that have sums.

    The sums of a part are as large as the gradients of key and value of a head.
    """
    least = -(-threads // max(heads, 1))
    most = max(least, PER_THREAD * threads // max(heads, 1))
    return min(
        range(least, most + 1),
        key=lambda parts: max(_idle(heads * parts, threads), IDLE),
    )


def _idle(programs: int, threads: int) -> float:
    """The share of the time in which threads wait for others at the end."""
    turns = -(-programs // threads)
    return 1 - programs / (turns * threads) if turns else 0.0
