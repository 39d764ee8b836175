"""How values change where a pair of positions is moved in some direction.

A value *drifts* by `step` if each move of the pair by one in that direction adds
`step` to it, wherever the pair is. What does not drift is the same for all pairs that
lie in that direction of each other. Along the diagonal, where q_idx and kv_idx grow
together, their difference stays the same, and so does all that is computed of it, be
it a bucket of its logarithm: so functions of the difference are recognised, however
often and in whatever form they mention the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerType
from xdsl.ir import Operation, Region, SSAValue

from flexc.passes.scalar.ranges.linear_forms import int_constant
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.reads.whole_numbers import WholeNumbers


@dataclass(frozen=True)
class Drift:
    """What each move in a direction adds to a value.

    To an integer modulo two to the power of its width, unless it is `exact`: then to
    the number that its bits are, read as signed. To a float without any rounding.
    """

    step: int
    exact: bool = True


STILL = Drift(0)
"""The same everywhere in a direction."""

Steps = Sequence[Drift]
Rule = Callable[[Any, Steps, WholeNumbers], Drift | None]


class Drifts:
    """The drift of each value of a mod's region in one direction, None if it has none.

    `moving` are the positions that grow by one with each move. Where a score is the
    first argument, nothing is known of it.
    """

    def __init__(
        self, region: Region, moving: Sequence[SSAValue], numbers: WholeNumbers
    ):
        self.numbers = numbers
        first = region.block.args[0]
        self._known: dict[SSAValue, Drift | None] = {
            arg: Drift(1) if arg in moving else STILL for arg in region.block.args
        }
        if not isinstance(first.type, IntegerType):
            self._known[first] = None
        for op in region.block.ops:
            found = self._of(op)
            for result in op.results:
                self._known[result] = found

    def __getitem__(self, value: SSAValue) -> Drift | None:
        return self._known[value]

    def is_still(self, value: SSAValue) -> bool:
        """Whether a value is the same everywhere in the direction."""
        return self[value] == STILL

    def _of(self, op: Operation) -> Drift | None:
        known = [d for v in op.operands if (d := self[v]) is not None]
        if len(known) < len(op.operands):
            return None
        if all(d.step == 0 for d in known):
            return STILL
        rule = RULES.get(type(op))
        drift = None if rule is None else rule(op, known, self.numbers)
        # What is the same modulo two to the power of the width is the same.
        return STILL if drift is not None and drift.step == 0 else drift


def _sum(sign: int) -> Rule:
    def rule(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift:
        a, b = steps
        exact = a.exact and b.exact and numbers.is_exact(op)
        return Drift(a.step + sign * b.step, exact)

    return rule


def _product(op: arith.MuliOp, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    a, b = steps
    moving, factor = (a, op.rhs) if b.step == 0 else (b, op.lhs)
    constant = int_constant(factor)
    if constant is None:
        return None
    return Drift(moving.step * constant, moving.exact and numbers.is_exact(op))


def _shift(op: arith.ShLIOp, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    by = int_constant(op.rhs)
    if by is None or not 0 <= by < width_of(op.result.type):
        return None
    return Drift(steps[0].step << by, steps[0].exact and numbers.is_exact(op))


def _truncated(op: arith.TruncIOp, steps: Steps, numbers: WholeNumbers) -> Drift:
    kept = numbers.fits_in(op.input, width_of(op.result.type))
    return Drift(steps[0].step, steps[0].exact and kept)


def _extended(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    signed = isinstance(op, arith.ExtSIOp) or numbers.is_nonnegative(op.operands[0])
    return steps[0] if steps[0].exact and signed else None


def _together(steps: Steps) -> Drift | None:
    """Of several numbers, the drift that they share as numbers."""
    shared = all(d.exact and d.step == steps[0].step for d in steps)
    return steps[0] if shared else None


def _extremum(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    return _together(steps)


def _chosen(op: arith.SelectOp, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    test, a, b = steps
    if test.step != 0 or a.step != b.step:
        return None
    return Drift(a.step, a.exact and b.exact)


def _compared(op: arith.CmpiOp, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    if predicate in ("eq", "ne"):
        return STILL if steps[0].step == steps[1].step else None
    if predicate[0] == "u" and not all(map(numbers.is_nonnegative, op.operands)):
        return None
    return None if _together(steps) is None else STILL


def _floats_compared(
    op: arith.CmpfOp, steps: Steps, numbers: WholeNumbers
) -> Drift | None:
    return None if _together(steps) is None else STILL


def _to_float(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    signed = isinstance(op, arith.SIToFPOp) or numbers.is_nonnegative(op.operands[0])
    whole = numbers.is_whole(op.results[0])
    return steps[0] if steps[0].exact and signed and whole else None


def _to_integer(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift | None:
    kept = numbers.fits_in(op.operands[0], width_of(op.results[0].type))
    return steps[0] if kept else None


def _of_floats(combine: Callable[[Steps], int]) -> Rule:
    """Of arithmetic on whole numbers that rounds nothing."""

    def rule(op: Operation, steps: Steps, numbers: WholeNumbers) -> Drift | None:
        values = (*op.operands, *op.results)
        return Drift(combine(steps)) if all(map(numbers.is_whole, values)) else None

    return rule


def _float_product(
    op: arith.MulfOp, steps: Steps, numbers: WholeNumbers
) -> Drift | None:
    a, b = steps
    moving, factor = (a, op.rhs) if b.step == 0 else (b, op.lhs)
    constant = factor.owner
    if not isinstance(constant, arith.ConstantOp) or not numbers.is_whole(op.result):
        return None
    assert isinstance(constant.value, FloatAttr)
    return Drift(moving.step * int(constant.value.value.data))


RULES: Mapping[type[Operation], Rule] = {
    arith.AddiOp: _sum(1),
    arith.SubiOp: _sum(-1),
    arith.MuliOp: _product,
    arith.ShLIOp: _shift,
    arith.TruncIOp: _truncated,
    arith.ExtSIOp: _extended,
    arith.ExtUIOp: _extended,
    arith.MinSIOp: _extremum,
    arith.MaxSIOp: _extremum,
    arith.SelectOp: _chosen,
    arith.CmpiOp: _compared,
    arith.CmpfOp: _floats_compared,
    arith.SIToFPOp: _to_float,
    arith.UIToFPOp: _to_float,
    arith.FPToSIOp: _to_integer,
    arith.AddfOp: _of_floats(lambda steps: steps[0].step + steps[1].step),
    arith.SubfOp: _of_floats(lambda steps: steps[0].step - steps[1].step),
    arith.NegfOp: _of_floats(lambda steps: -steps[0].step),
    arith.MulfOp: _float_product,
    arith.ExtFOp: _of_floats(lambda steps: steps[0].step),
    arith.TruncFOp: _of_floats(lambda steps: steps[0].step),
    arith.MinimumfOp: _extremum,
    arith.MaximumfOp: _extremum,
    arith.MinnumfOp: _extremum,
    arith.MaxnumfOp: _extremum,
}
"""How an op moves, some of whose operands move, and none in an unknown way."""
