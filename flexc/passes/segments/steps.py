"""Runs of columns, visited some columns at a time: iterations of trimmed segments.

A run takes as many iterations as it has steps; its last one has what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.scalar_code import ScalarCode

Pieces = list[tuple[SSAValue, SSAValue]]
"""Begin and end of each run, the end not included; none is negative."""


def limits(code: ScalarCode, lengths: Sequence[SSAValue]) -> list[SSAValue]:
    """For each run the iteration that it ends before."""
    at, *rest = lengths
    found = [at]
    for length in rest:
        at = code.add(at, length)
        found.append(at)
    return found


def iterations(code: ScalarCode, pieces: Pieces, step: int) -> list[SSAValue]:
    """For each run the iteration that it ends before, of all runs in turn."""
    lengths = [code.ceildiv(code.sub(end, begin), step) for begin, end in pieces]
    return limits(code, lengths)


def columns_of(
    code: ScalarCode, i: SSAValue, pieces: Pieces, step: int
) -> tuple[SSAValue, SSAValue]:
    """The first column of an iteration, and how many it visits."""
    (begin, end), *rest = pieces
    if rest:
        before = code.const(0)
        ends = iterations(code, pieces, step)
        for limit, (next_begin, next_end) in zip(ends, rest, strict=False):
            later = code.cmp("sge", i, limit)
            before = code.select(later, limit, before)
            begin = code.select(later, next_begin, begin)
            end = code.select(later, next_end, end)
        i = code.sub(i, before)
    size = code.const(step)
    first = code.add(begin, code.mul(i, size))
    return first, code.insert(arith.MinSIOp(size, code.sub(end, first)))
