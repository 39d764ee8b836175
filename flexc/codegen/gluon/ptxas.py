"""Edit the PTX that ptxas reads, and find performance problems in its log.

ptxas reports only in remarks that it serialized asynchronous products, or that values
did not fit registers. Such a kernel is correct but slow.

The edit lets each warp arrive at a barrier by itself.
Gluon's `mbarrier.arrive` makes all warps of a partition wait for each other
(`bar.sync`), and then one thread arrives for all. Waits at barriers are preceded by a
`bar.sync` too, because Triton protects the memory of an mbarrier like other memory.
Warps need not be together there: a warp arrives after its own reads, and a phase is
complete when all warps arrived. The edit replaces

    bar.sync 2, 128;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1], 4;

by an arrival of one lane of each warp, and drops a `bar.sync` before a wait, unless
other accesses of shared memory need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SERIALISED = re.compile(r"\((C75\d\d)\)\s*(.*)$", re.MULTILINE)
"""Remarks C7510 to C7517: products are awaited where they are issued."""


SPILL_TO_MEMORY = " bytes spill to memory"

SPILL_LIMIT = 256
"""The bytes that a thread may spill to memory before a kernel counts as slow."""


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


WARP, WARP_GROUP = 32, 128

_GAP = r"(?P<gap>(?:[ \t]*(?://[^\n]*|\.loc[^\n]*)?\n)*)"
_SYNC = r"[ \t]*bar\.sync[ \t]+\d+, (?P<threads>\d+);[ \t]*\n"
_ARRIVE = (
    r"[ \t]*@%p\d+ mbarrier\.arrive\.shared::cta\.b64 _, "
    r"\[(?P<address>[^\]]+)\], (?P<count>\d+);"
)
_WAIT = (
    r"(?P<wait>[ \t]*\{[ \t]*\n"
    r"(?:[ \t]*(?:\.reg[^\n]*|\w+:|//[^\n]*)?[ \t]*\n){1,4}[ \t]*mbarrier\.try_wait)"
)
EDITABLE = re.compile(f"{_SYNC}{_GAP}(?:{_ARRIVE}|{_WAIT})")

ORDINARY = re.compile(
    r"\b(?:(?:ld|st|atom|red)(?:\.\w+)*\.shared|ldmatrix|stmatrix|mbarrier\.init)\b"
)
"""Accesses of shared memory by threads."""

ASYNCHRONOUS = re.compile(r"\bwgmma\.|\bcp\.(?:reduce\.)?async\b")
"""Accesses of shared memory by other units, which `bar.sync` orders with ORDINARY."""

_LABEL = re.compile(r"^[ \t]*(\$[\w$]+):")
_BRANCH = re.compile(r"^[ \t]*(@!?%p\d+ )?bra(?:\.uni)?[ \t]+(\$[\w$]+);")
_INDEXED = re.compile(r"\bbrx\.idx(?:\.uni)?[^,]*,\s*([\w$]+)\s*;")
_TARGETS = re.compile(r"^[ \t]*([\w$]+):\s*\.branchtargets\s([^;]*);", re.MULTILINE)
_END = re.compile(r"^[ \t]*(?:ret|exit|trap);")
_SYNCHRONIZES = re.compile(r"^[ \t]*(?:bar|barrier)(?:\.cta)?\.sync\b")


def arrive_by_warps(ptx: str) -> str:
    """Return PTX where each warp arrives by itself, if nothing forbids it."""
    found = list(EDITABLE.finditer(ptx))
    if not any(match["count"] for match in found):
        return ptx
    flow, edits = _Flow(ptx), list[tuple[re.Match[str], str]]()
    for match in found:
        text = _edited(match)
        if text is not None and flow.drop(ptx.count("\n", 0, match.start())):
            edits.append((match, text))
    for match, text in reversed(edits):
        ptx = ptx[: match.start()] + text + ptx[match.end() :]
    return ptx


def _edited(match: re.Match[str]) -> str | None:
    """Return the text without `bar.sync`, or None if not all warps of it arrive.

    A `bar.sync` of several warp groups takes a turn, and stays.
    """
    gap, wait = match["gap"], match["wait"]
    if int(match["threads"]) > WARP_GROUP:
        return None
    if wait is not None:
        return gap + wait
    if int(match["threads"]) != WARP * int(match["count"]):
        return None
    return (
        f"{gap}\t{{\n\t.reg .pred is_first;\n\t.reg .b32 lane;\n"
        "\tbar.warp.sync 0xffffffff;\n\tmov.u32 lane, %laneid;\n"
        "\tsetp.eq.u32 is_first, lane, 0;\n"
        f"\t@is_first mbarrier.arrive.shared::cta.b64 _, [{match['address']}];\n\t}}"
    )


class _Flow:
    """The flow of control between lines of PTX."""

    def __init__(self, ptx: str):
        self._lines = ptx.split("\n")
        self._dropped: set[int] = set()
        self._targets = {m[1]: m[2].split(",") for m in _TARGETS.finditer(ptx)}
        labels = {
            match[1]: at
            for at, line in enumerate(self._lines)
            if (match := _LABEL.match(line))
        }
        self._after = [[*self._next(at, labels)] for at in range(len(self._lines))]
        self._before: list[list[int]] = [[] for _ in self._lines]
        for at, following in enumerate(self._after):
            for other in following:
                self._before[other].append(at)

    def _next(self, at: int, labels: dict[str, int]) -> Iterator[int]:
        """Yield the lines that may run after a line."""
        line = self._lines[at]
        branch = _BRANCH.match(line)
        if branch:
            yield labels[branch[2]]
        jump = _INDEXED.search(line)
        if jump:
            yield from (labels[name.strip()] for name in self._targets[jump[1]])
        leaves = jump or _END.match(line) or (branch and branch[1] is None)
        if not leaves and at + 1 < len(self._lines):
            yield at + 1

    def drop(self, at: int) -> bool:
        """Drop a `bar.sync`, unless it alone separates accesses; return True if so.

        Each is judged without those dropped before, so some `bar.sync` stays between
        any two accesses that had one.
        """
        before, after = self._reached(at, self._before), self._reached(at, self._after)
        if (ORDINARY in before and after) or (ORDINARY in after and before):
            return False
        self._dropped.add(at)
        return True

    def _reached(self, at: int, steps: list[list[int]]) -> set[re.Pattern[str]]:
        """Return the kinds of accesses between a line and other `bar.sync`."""
        found: set[re.Pattern[str]] = set()
        seen, todo = {at}, list(steps[at])
        while todo:
            line = todo.pop()
            if line in seen or self._is_sync(line):
                continue
            seen.add(line)
            found |= {
                k for k in (ORDINARY, ASYNCHRONOUS) if k.search(self._lines[line])
            }
            todo += steps[line]
        return found

    def _is_sync(self, line: int) -> bool:
        is_there = _SYNCHRONIZES.match(self._lines[line]) is not None
        return is_there and line not in self._dropped
