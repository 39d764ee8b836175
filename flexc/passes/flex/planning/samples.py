"""Where a block is looked at: its corners, its middle, and along the diagonal.

A pair that is live proves that a block is not dead, one that is not that it is not
full. Most partial blocks of masks that people write show both at one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Region, SSAValue

from flexc.passes.flex.planning.program import Scalars, mask_at
from flexc.passes.scalar.scalar_code import ScalarCode

Pair = tuple[SSAValue, SSAValue]


@dataclass(frozen=True)
class Span:
    """The first and last position of a block that exist."""

    first: SSAValue
    last: SSAValue


def span_of(code: ScalarCode, block: SSAValue, at: Scalars, axis: str) -> Span:
    """The positions of a block of rows ("q") or columns ("kv")."""
    size, end = at[f"{axis}_block"], code.sub(at[f"{axis}_len"], code.const(1))
    first = minimum(code, code.mul(block, size), end)
    last = code.add(first, code.sub(size, code.const(1)))
    first.name_hint, last.name_hint = f"{axis}_first", f"{axis}_last"
    return Span(first, minimum(code, last, end))


def minimum(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.MinSIOp(a, b), a.name_hint)


def maximum(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.MaxSIOp(a, b), a.name_hint)


def sample_pairs(code: ScalarCode, q: Span, kv: Span) -> list[Pair]:
    """The pairs of a block that are looked at; some may coincide."""
    corners = [(row, c) for row in (q.first, q.last) for c in (kv.first, kv.last)]
    pairs = [*corners, (_middle(code, q), _middle(code, kv))]
    pairs.append((q.first, _next(code, kv)))
    pairs.append((_next(code, q), kv.first))
    # Where the diagonal enters the block and where it leaves it.
    for point in (maximum(code, q.first, kv.first), minimum(code, q.last, kv.last)):
        pairs.append((_within(code, point, q), _within(code, point, kv)))
    return pairs


def _middle(code: ScalarCode, span: Span) -> SSAValue:
    length = code.sub(span.last, span.first)
    half = code.insert(arith.ShRSIOp(length, code.const(1)))
    return code.add(span.first, half)


def _next(code: ScalarCode, span: Span) -> SSAValue:
    return minimum(code, code.add(span.first, code.const(1)), span.last)


def _within(code: ScalarCode, point: SSAValue, span: Span) -> SSAValue:
    return minimum(code, maximum(code, point, span.first), span.last)


def negated(code: ScalarCode, value: SSAValue) -> SSAValue:
    return code.insert(arith.XOrIOp(value, code.const(1, i1)))


def whole(code: ScalarCode, at: Scalars) -> SSAValue:
    """Whether block (m, n) may be full at all."""
    rows = code.cmp("slt", at["m"], at["q_whole"])
    return code.and_(rows, code.cmp("slt", at["n"], at["kv_whole"]))


def surely_partial(
    mask: Region, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
) -> SSAValue:
    """Whether samples of block (m, n) show that it is neither dead nor full."""
    q, kv = span_of(code, at["m"], at, "q"), span_of(code, at["n"], at, "kv")
    alive, broken = code.const(0, i1), negated(code, whole(code, at))
    for pair in sample_pairs(code, q, kv):
        live = mask_at(mask, code, at, pair, captures)
        alive = code.insert(arith.OrIOp(alive, live))
        broken = code.insert(arith.OrIOp(broken, negated(code, live)))
    return code.and_(alive, broken)
