"""Which asynchronous products must be complete before an op.

Products of a warp group complete in the order in which they were issued. Each is waited
for right before the first op that needs its result, and at the latest where its block
ends or a loop begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue
from xdsl.traits import IsTerminator

from flexc.dialects import tile
from flexc.dialects.tile.schedule import ArriveOp, WriteViewOp


def complete_before(op: Operation, in_flight: Sequence[SSAValue]) -> int:
    """How many products must be complete before an op, those issued first.

    `in_flight` has the results of those that were issued in the op's block and not yet
    waited for, in the order of their issue.
    """
    count = len(in_flight)
    if not needs_all(op):
        used = {value for inner in op.walk() for value in inner.operands}
        while count and in_flight[count - 1] not in used:
            count -= 1
    return count


def needs_all(op: Operation) -> bool:
    """Whether nothing may be in flight when an op runs."""
    if isinstance(op, scf.ForOp | WriteViewOp) or op.has_trait(IsTerminator):
        return True
    inside = (inner for inner in op.walk() if inner is not op)
    return any(isinstance(inner, tile.DotOp | ArriveOp) for inner in inside)
