"""What is known in all iterations of a loop but the first."""

from __future__ import annotations

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from flexc.passes.analysis.steps import constant

LESS = 2
"""The number of arith.cmpi's signed comparison `slt`."""


def known_later(loop: scf.ForOp) -> dict[SSAValue, bool]:
    """Conditions from outside of a loop that are settled after its first iteration.

    A loop from begin to max(end, begin + 1) has a second one only if begin < end.
    """
    bound = loop.ub.owner
    if not isinstance(bound, arith.MaxSIOp) or constant(loop.step) != 1:
        return {}
    ends = [(bound.lhs, bound.rhs), (bound.rhs, bound.lhs)]
    found: dict[SSAValue, bool] = {}
    for end, least in ends:
        if _is_next(loop.lb, least):
            for use in end.uses:
                if _is_below(use.operation, loop.lb, end):
                    found |= _with_negations(use.operation.results[0])
    return found


def _is_next(begin: SSAValue, value: SSAValue) -> bool:
    first, second = constant(begin), constant(value)
    return first is not None and second == first + 1


def _is_below(op: Operation, begin: SSAValue, end: SSAValue) -> bool:
    """Whether an op tests if a constant begin is below an end."""
    return (
        isinstance(op, arith.CmpiOp)
        and op.predicate.value.data == LESS
        and constant(op.lhs) == constant(begin)
        and op.rhs is end
    )


def _with_negations(test: SSAValue) -> dict[SSAValue, bool]:
    """A condition that holds, and what says that it does not."""
    found = {test: True}
    for use in test.uses:
        op = use.operation
        if isinstance(op, arith.XOrIOp):
            other = op.rhs if op.lhs is test else op.lhs
            if constant(other) is not None and other.type == i1:
                found[op.result] = not constant(other)
    return found
