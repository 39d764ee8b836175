"""Compute the ranges of a mod's integers as in torch's eager mode.

Indices are int64 there. Arithmetic on positions, captured integers, sizes and literals
is exact here, although the frontend writes this arithmetic as i32 and truncates numbers
to i32. Values that were loaded from a tensor or cast by the user are computed in their
own type, where they wrap around, until they are combined with a position.

Also recognise Python's `%`, `//` and negative indices as frontends spell them. A sum
that is used only where a test holds is spelled `select(test, x + n, x)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import permutations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval, full, point
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of


def chosen_sum(value: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue] | None:
    """Return test, x and n of `select(test, x + n, x)`, else None."""
    op = value.owner
    if not isinstance(op, arith.SelectOp):
        return None
    total, x = op.lhs.owner, op.rhs
    if not isinstance(total, arith.AddiOp) or x not in total.operands:
        return None
    return op.cond, x, total.rhs if total.lhs is x else total.lhs


def tests_of(total: SSAValue, x: SSAValue) -> list[SSAValue] | None:
    """Return the tests of a sum's users.

    Return None unless all users are `select(test, total, x)`.
    """
    tests: list[SSAValue] = []
    for use in total.uses:
        user = use.operation
        if not isinstance(user, arith.SelectOp):
            return None
        if user.lhs is not total or user.rhs is not x:
            return None
        tests.append(user.cond)
    return tests or None


def is_negative(test: SSAValue, x: SSAValue) -> bool:
    """Return True if a flag is x < 0."""
    return _compares(test, "slt", x)


def signs_differ(test: SSAValue, x: SSAValue, n: SSAValue) -> bool:
    """Return True if a flag is false unless x and n have different signs."""
    if isinstance(test.owner, arith.AndIOp):
        return any(signs_differ(part, x, n) for part in test.owner.operands)
    return _tells_signs_apart(test, x, n)


def _tells_signs_apart(test: SSAValue, x: SSAValue, n: SSAValue) -> bool:
    """Return True if a flag is (x < 0) != (n < 0)."""
    return isinstance(test.owner, arith.XOrIOp) and any(
        is_negative(a, x) and is_negative(b, n)
        for a, b in permutations(test.owner.operands)
    )


Division = tuple[SSAValue, SSAValue | int]
"""A dividend and a divisor."""


def floor_modulo(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """Return x and s if the value is x modulo s wherever s is positive, else None."""
    op = value.owner
    match op:
        case arith.RemSIOp() if ranges[op.lhs].is_nonnegative:
            return _division(op.lhs, op.rhs)
        case arith.SelectOp():
            rest = mended_remainder(value)
            return None if rest is None else _division(rest.lhs, rest.rhs)
        case arith.AndIOp():
            mask = int_constant(op.rhs)
            is_mask = mask is not None and mask > 0 and not mask & (mask + 1)
            return (op.lhs, mask + 1) if is_mask and mask is not None else None
        case _:
            return None


def _division(dividend: SSAValue, divisor: SSAValue) -> Division | None:
    constant = int_constant(divisor)
    if constant is None:
        return dividend, divisor
    return (dividend, constant) if constant > 0 else None


def mended_remainder(value: SSAValue) -> arith.RemSIOp | None:
    """Return r of `select(r has the wrong sign, r + s, r)`, r = x rem s, else None."""
    match chosen_sum(value):
        case (test, SSAValue(owner=arith.RemSIOp() as rest), s) if is_same(s, rest.rhs):
            return rest if _has_wrong_sign(test, rest) else None
        case _:
            return None


def _has_wrong_sign(test: SSAValue, rest: arith.RemSIOp) -> bool:
    """Return True if a flag says that a remainder and its divisor differ in sign.

    `r < 0` is enough: callers know that the divisor is positive.
    """
    if is_negative(test, rest.result):
        return True
    return isinstance(test.owner, arith.AndIOp) and any(
        _compares(nonzero, "ne", rest.result)
        and _tells_signs_apart(differs, rest.result, rest.rhs)
        for nonzero, differs in permutations(test.owner.operands)
    )


def is_same(a: SSAValue, b: SSAValue) -> bool:
    """Return True for one value, and for equal constants."""
    return a is b or int_constant(a) == int_constant(b) is not None


def _compares(value: SSAValue, predicate: str, of: SSAValue) -> bool:
    """Return True if a value is the comparison of `of` with 0 by `predicate`."""
    op = value.owner
    return (
        isinstance(op, arith.CmpiOp)
        and predicate_of(op) == predicate
        and op.lhs is of
        and int_constant(op.rhs) == 0
    )


def floor_quotient(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """Return x and s if the value is floor(x / s) wherever s is positive, else None."""
    op = value.owner
    match op:
        case arith.ShRSIOp():
            amount = int_constant(op.rhs)
            if amount is None or not 0 <= amount < width_of(value.type):
                return None
            return op.lhs, 1 << amount
        case arith.FloorDivSIOp():
            return _division(op.lhs, op.rhs)
        case arith.DivSIOp() if ranges[op.lhs].is_nonnegative:
            return _division(op.lhs, op.rhs)
        case _:
            return None


EXACT_BITS = 64
"""The width of torch's indices."""

DIVISIONS = (arith.DivSIOp, arith.FloorDivSIOp, arith.CeilDivSIOp, arith.RemSIOp)

ARITHMETIC = (
    *DIVISIONS,
    arith.AddiOp,
    arith.SubiOp,
    arith.MuliOp,
    arith.MinSIOp,
    arith.MaxSIOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.ShLIOp,
    arith.ShRSIOp,
    arith.SelectOp,
    arith.ExtSIOp,
    math_dialect.AbsIOp,
)
"""Ops that have the same result on sign-extended operands, unless they overflow."""


Number = int | Interval
"""An integer, or its range."""

Known = Number | tuple[Number, ...] | None
"""Knowledge about a capture: a number, a tensor's shape, or None."""


def rounded(known: Known) -> Known:
    """Return what is known in all calls whose numbers have equal bit lengths and signs.

    A decoding loop has new lengths and numbers at each step, and few new bit lengths.
    """
    if isinstance(known, tuple):
        return tuple(map(_rounded, known))
    return known if known is None else _rounded(known)


def _rounded(number: Number) -> Interval:
    if isinstance(number, Interval):
        return number
    most = (1 << abs(number).bit_length()) - 1
    least = (most + 1) // 2
    return Interval(least, most) if number >= 0 else Interval(-most, -least)


def interval_of(number: Number) -> Interval:
    """Return the range of a number."""
    return number if isinstance(number, Interval) else point(number)


class IntegerOrigin(Enum):
    """The source of an integer, which decides the type of the arithmetic."""

    NUMBER = auto()
    """Captured integers, sizes and literals only."""
    POSITION = auto()
    """At least one of b, h, q_idx and kv_idx."""
    OTHER = auto()
    """Loaded values, casts and flags."""


def position_args(region: Region) -> Sequence[SSAValue]:
    """Return b, h, q_idx and kv_idx of a mod's region."""
    first = 0 if isinstance(region.block.args[0].type, IntegerType) else 1
    return region.block.args[first : first + len(INDEX_ARGS)]


def known_of_call(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> dict[SSAValue, Interval]:
    """Return the ranges of a region's arguments and sizes, in one call or in several.

    `positions` are the ranges of b, h, q_idx and kv_idx. `captures` has what is known
    about each capture.
    """
    known = dict(zip(position_args(region), positions, strict=True))
    args = region.block.args[len(region.block.args) - len(captures) :]
    given: dict[SSAValue, Known] = dict(zip(args, captures, strict=True))
    for arg, what in given.items():
        if isinstance(what, int | Interval) and isinstance(arg.type, IntegerType):
            known[arg] = interval_of(what)
    for op in region.block.ops:
        if isinstance(op, flex.DimOp):
            shape = given[op.tensor]
            assert isinstance(shape, tuple)
            known[op.result] = interval_of(shape[op.dim.value.data])
    return known


class ExactRanges(ValueRanges):
    """The ranges of a mod's values, where exact values do not wrap around.

    The range of an i32 may thus exceed i32; `fits` tests for this.
    """

    def __init__(self, region: Region, known: Mapping[SSAValue, Interval]):
        super().__init__(known)
        self._origins: dict[SSAValue, IntegerOrigin] = dict.fromkeys(
            position_args(region), IntegerOrigin.POSITION
        )

    def origin(self, value: SSAValue) -> IntegerOrigin:
        """Return the source of an integer."""
        found = self._origins.get(value)
        if found is None:
            found = self._origins[value] = self._origin(value)
        return found

    def _origin(self, value: SSAValue) -> IntegerOrigin:
        if not isa(value.type, IntegerType) or value.type == i1:
            return IntegerOrigin.OTHER
        match value.owner:
            case Block() | arith.ConstantOp() | flex.DimOp():
                return IntegerOrigin.NUMBER
            case arith.TruncIOp(input=source):
                # The frontend truncates captured numbers. Other truncations are the
                # user's.
                number = self.origin(source) is IntegerOrigin.NUMBER
                return IntegerOrigin.NUMBER if number else IntegerOrigin.OTHER
            case arith.SelectOp(lhs=a, rhs=b):
                return self.meet((a, b))
            case Operation() as op if isinstance(op, ARITHMETIC):
                return self.meet(op.operands)
            case _:
                return IntegerOrigin.OTHER

    def meet(self, values: Iterable[SSAValue]) -> IntegerOrigin:
        """Return the combined source of the operands of an op.

        Positions take precedence over loaded values, and loaded values over numbers.
        """
        origins = [self.origin(v) for v in values]
        if IntegerOrigin.POSITION in origins:
            return IntegerOrigin.POSITION
        return (
            IntegerOrigin.OTHER
            if IntegerOrigin.OTHER in origins
            else IntegerOrigin.NUMBER
        )

    def is_exact(self, value: SSAValue) -> bool:
        """Return True if a value equals the result of int64 arithmetic."""
        return self.origin(value) is not IntegerOrigin.OTHER

    def fits(self, value: SSAValue) -> bool:
        """Return True if a value's type holds its range."""
        if not isa(value.type, IntegerType):
            return True
        return self[value].within(full(width_of(value.type)))

    def width(self, value: SSAValue) -> int:
        width = super().width(value)
        return max(width, EXACT_BITS) if self.is_exact(value) else width

    def _compute(self, value: SSAValue) -> Interval:
        op = value.owner
        if not isinstance(op, Operation) or self.is_exact(value):
            return self._exact_result(op, value)
        if all(map(self.fits, op.operands)):
            return super()._compute(value)
        return full(width_of(value.type))

    def _exact_result(self, op: Operation | Block, value: SSAValue) -> Interval:
        if isinstance(op, DIVISIONS) and 0 in self[op.rhs]:
            # The result may be any number of the type in which the division is done.
            narrow = all(map(self.fits, op.operands))
            return full(width_of(value.type) if narrow else EXACT_BITS)
        if isinstance(op, arith.AddiOp):
            chosen = self._chosen_sum(op)
            return super()._compute(value) if chosen is None else chosen
        return super()._compute(value)

    def _chosen_sum(self, op: arith.AddiOp) -> Interval | None:
        """Return the range of x + n if used only where a test of x holds, else None.

        Where the test is false, x + n may overflow, because no op uses the result.
        """
        for x, n in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if (tests := tests_of(op.result, x)) is None:
                continue
            if all(is_negative(test, x) for test in tests):
                return self._sum_where_negative(self[x], self[n])
            if all(signs_differ(test, x, n) for test in tests):
                return intervals.union(self[x], self[n])
        return None

    def _sum_where_negative(self, x: Interval, n: Interval) -> Interval:
        if x.is_nonnegative:
            return x
        return intervals.add(Interval(x.lo, min(x.hi, -1)), n, EXACT_BITS)
