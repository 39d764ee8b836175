"""Find performance problems of a compiled kernel in ptxas's log.

ptxas reports only in remarks that it serialized asynchronous products, or that values
did not fit registers. Such a kernel is correct but slow.
"""

from __future__ import annotations

import re

SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SERIALISED = re.compile(r"\((C75\d\d)\)\s*(.*)$", re.MULTILINE)
"""Remarks C7510 to C7517: products are awaited where they are issued."""


SPILL_TO_MEMORY = " bytes spill to memory"

SPILL_LIMIT = 256
"""The bytes that a thread may spill to memory before a kernel counts as slow."""

ONE_PASS_SPILL_LIMIT = 240
"""The limit for gradients from one visit to each pair.

Beyond it, the simple schedule, which needs fewer registers, is faster than overlap.
"""


def problems(log: str, most_spilled: int = SPILL_LIMIT) -> list[str]:
    """Return the problems that make a kernel slow, from a log of `ptxas -v`."""
    if not SPILLS.search(log):
        return ["ptxas printed no resource usage of the kernel"]
    found: list[str] = []
    if (spilled := spilled_bytes(log)) > most_spilled:
        used = max(map(int, REGISTERS.findall(log)), default=0)
        found.append(f"{spilled}{SPILL_TO_MEMORY}, with {used} registers")
    for code, text in dict(SERIALISED.findall(log)).items():
        found.append(f"products do not overlap: {code} {text}")
    return found


def spilled_bytes(log: str) -> int:
    """Return the most bytes that one function of a log spills."""
    return max((int(stores) for stores, _ in SPILLS.findall(log)), default=0)


def spilled_by(problem: str) -> int:
    """Return the spilled bytes that a problem's text states, 0 for another problem."""
    number, is_spill, _ = problem.partition(SPILL_TO_MEMORY)
    return int(number) if is_spill else 0
