"""Compute the descriptors of products where they are used.

A product that reads shared memory takes a descriptor, a number of 64 bits, at each of
its steps. LLVM computes the descriptors of a tile that stays in place before the loop:
24 of them in a backward of head dim 128, which take registers or are spilled. Computed
in the loop they are sums with an address in a uniform register.

`sink_descriptors` repeats the arithmetic of a descriptor before a product in a loop
that does not contain it. The copy reads only registers that are assigned at one place.
LLVM prints values in SSA form, where these still hold the value of the original.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

PRODUCT = "wgmma.mma_async"

_PURE = re.compile(
    r"\s*(?P<name>(?:add|and|or|shl|shr|bfe|cvt)(?:\.\w+)+)\s+"
    r"(?P<result>%rd?\d+), (?P<inputs>[^;{}\[\]]+);"
)
"""Integer arithmetic without a predicate."""

_ASSIGNED = re.compile(r"\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")
_REGISTER = re.compile(r"%rd?\d+\b")
_LABEL = re.compile(r"(\$[\w$]+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?[ \t]+(\$[\w$]+);")
_DECLARED = re.compile(r"(?P<type>\.reg \.b\d+[ \t]+)(?P<prefix>%rd?)<(?P<count>\d+)>;")


def sink_descriptors(ptx: str) -> str:
    """Return PTX where no descriptor of a product is computed outside of its loop."""
    return _Descriptors(ptx).sunk()


class _Descriptors:
    """The lines of PTX, and how they compute registers."""

    def __init__(self, ptx: str):
        self.ptx, self.lines = ptx, ptx.split("\n")
        self._assigned: Counter[str] = Counter()
        self._pure: dict[str, tuple[int, re.Match[str]]] = {}
        """By register: the line of the arithmetic that computes it."""
        for at, line in enumerate(self.lines):
            if found := _ASSIGNED.match(line):
                self._assigned.update(_REGISTER.findall(found[1]))
            if found := _PURE.match(line):
                self._pure[found["result"]] = at, found
        self._next: dict[str, int] = {}
        """By prefix: the number of a register that no function has."""
        for found in _DECLARED.finditer(ptx):
            prefix, count = found["prefix"], int(found["count"])
            self._next[prefix] = max(count, self._next.get(prefix, 0))

    def sunk(self) -> str:
        """Return the text with copies of descriptors, in further registers."""
        lines = list(self.lines)
        for first, last in self._innermost_loops():
            for at in range(first, last):
                if PRODUCT in lines[at]:
                    lines[at] = self._with_descriptors(lines[at], first, last)

        def declared(found: re.Match[str]) -> str:
            prefix = found["prefix"]
            return f"{found['type']}{prefix}<{self._next[prefix]}>;"

        return _DECLARED.sub(declared, "\n".join(lines))

    def _innermost_loops(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last line of loops that contain no other loop."""
        labels = {m[1]: at for at, m in self._matches(_LABEL.match)}
        loops = [
            (labels[m[1]], at)
            for at, m in self._matches(_BRANCH.search)
            if labels.get(m[1], at) < at
        ]
        for loop in loops:
            if not any(_contains(loop, other) for other in loops if other != loop):
                yield loop

    def _matches(
        self, match: Callable[[str], re.Match[str] | None]
    ) -> Iterator[tuple[int, re.Match[str]]]:
        for at, line in enumerate(self.lines):
            if found := match(line):
                yield at, found

    def _with_descriptors(self, product: str, first: int, last: int) -> str:
        """Return a product after the arithmetic of its descriptors from elsewhere."""
        code: list[str] = []
        copies: dict[str, str] = {}

        def copied(register: str) -> str:
            at, op = self._pure.get(register, (first, None))
            if op is None or first <= at <= last or not self._is_fixed(op[0]):
                return register
            if register not in copies:
                inputs = _REGISTER.sub(lambda m: copied(m[0]), op["inputs"])
                copies[register] = self._fresh(register)
                code.append(f"\t{op['name']} \t{copies[register]}, {inputs};")
            return copies[register]

        changed = re.sub(r"%rd\d+\b", lambda m: copied(m[0]), product)
        return "\n".join([*code, changed])

    def _is_fixed(self, text: str) -> bool:
        """Return True if a text names only registers that are assigned at one place."""
        return all(self._assigned[r] == 1 for r in _REGISTER.findall(text))

    def _fresh(self, like: str) -> str:
        """Return a register of the same kind that is not used yet."""
        prefix = like.rstrip("0123456789")
        number = self._next[prefix]
        self._next[prefix] += 1
        return f"{prefix}{number}"


def _contains(loop: tuple[int, int], other: tuple[int, int]) -> bool:
    return loop[0] <= other[0] and other[1] <= loop[1]
