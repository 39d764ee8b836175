"""What is wrong with a compiled kernel, by what ptxas says of it.

Only in remarks does ptxas say that it put asynchronous products one after another, or
that values did not fit registers: such a kernel is correct, and slow.
"""

from __future__ import annotations

import re

SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SERIALISED = re.compile(r"\((C75\d\d)\)\s*(.*)$", re.MULTILINE)
"""Remarks C7510 to C7517: products are waited for where they are issued."""


SPILL_TO_MEMORY = " bytes spill to memory"

MOST_SPILLED = 256
"""Bytes that a thread may store to memory for lack of registers."""


def problems(log: str, most_spilled: int = MOST_SPILLED) -> list[str]:
    """What makes a kernel slow, of those that a log of `ptxas -v` is about."""
    if not SPILLS.search(log):
        return ["ptxas said nothing of the kernel"]
    found: list[str] = []
    if (spilled := spilled_bytes(log)) > most_spilled:
        used = max(map(int, REGISTERS.findall(log)), default=0)
        found.append(f"{spilled}{SPILL_TO_MEMORY}, with {used} registers")
    for code, text in dict(SERIALISED.findall(log)).items():
        found.append(f"products do not overlap: {code} {text}")
    return found


def spilled_bytes(log: str) -> int:
    """The most that a function of a log stores for lack of registers."""
    return max((int(stores) for stores, _ in SPILLS.findall(log)), default=0)


def spilled_by(problem: str) -> int:
    """How many bytes a problem says that spill; 0 if it is another."""
    number, is_spill, _ = problem.partition(SPILL_TO_MEMORY)
    return int(number) if is_spill else 0
