"""Division and remainders: by ranges, by powers of two, and spelled out.

Frontends spell Python's `%` as a remainder rounded towards zero that is mended
where its sign is wrong; that is a mask for powers of two, and nothing to mend
for numbers that are not negative.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    int_constant,
    power_of_two,
    predicate_of,
)

DIVISIONS = (
    arith.DivSIOp,
    arith.FloorDivSIOp,
    arith.CeilDivSIOp,
    arith.DivUIOp,
    arith.CeilDivUIOp,
)


def divide_by_one(op: Operation, site: Site) -> SSAValue | None:
    """x / 1 -> x."""
    return op.operands[0] if int_constant(op.operands[1]) == 1 else None


def divide(op: Operation, site: Site) -> SSAValue | None:
    """x / c -> 0 for 0 <= x < c; x / 2**k -> x >> k for x >= 0."""
    x, y = op.operands
    divisor, values = int_constant(y), site.range(x)
    if divisor is None or divisor <= 0 or not values.is_nonnegative:
        return None
    if values.hi < divisor:
        return site.const(0, x.type)
    return _shift(x, divisor, site)


def floor_divide(op: Operation, site: Site) -> SSAValue | None:
    """floor(x / 2**k) -> x >> k; floor(x / y) -> x / y where neither is negative."""
    x, y = op.operands
    divisor = int_constant(y)
    if divisor is not None and (shifted := _shift(x, divisor, site)) is not None:
        return shifted
    if not site.range(x).is_nonnegative or site.range(y).lo <= 0:
        return None
    return site.insert(arith.DivSIOp(x, y))


def _shift(x: SSAValue, divisor: int, site: Site) -> SSAValue | None:
    """floor(x / divisor) for a power of two."""
    if (k := power_of_two(divisor)) is None:
        return None
    return site.insert(arith.ShRSIOp(x, site.const(k, x.type)))


def remainder(op: Operation, site: Site) -> SSAValue | None:
    """x % 1 -> 0; x % c -> x for 0 <= x < c; x % 2**k -> x & (2**k - 1) for x >= 0."""
    x, y = op.operands
    divisor, values = int_constant(y), site.range(x)
    if divisor == 1:
        return site.const(0, x.type)
    if divisor is None or divisor <= 0 or not values.is_nonnegative:
        return None
    if values.hi < divisor:
        return x
    return _mask(x, divisor, site)


def _mask(x: SSAValue, divisor: int | None, site: Site) -> SSAValue | None:
    """x - divisor * floor(x / divisor) for a power of two."""
    if divisor is None or power_of_two(divisor) is None:
        return None
    return site.insert(arith.AndIOp(x, site.const(divisor - 1, x.type)))


def to_signed_division(op: Operation, site: Site) -> SSAValue | None:
    """Unsigned division as signed, of numbers without signs."""
    x, y = op.operands
    if not (site.range(x).is_nonnegative and site.range(y).lo > 0):
        return None
    kind = arith.DivSIOp if isinstance(op, arith.DivUIOp) else arith.RemSIOp
    return site.insert(kind(x, y))


def mended_remainder(op: Operation, site: Site) -> SSAValue | None:
    """select(r < 0, r + 2**k, r) -> x & (2**k - 1) for r = x % 2**k."""
    assert isinstance(op, arith.SelectOp)
    test = defined_by(op.cond, arith.CmpiOp)
    rest = defined_by(op.rhs, arith.RemSIOp)
    mended = defined_by(op.lhs, arith.AddiOp)
    if test is None or rest is None or mended is None:
        return None
    is_negative = predicate_of(test) == "slt" and int_constant(test.rhs) == 0
    divisor = int_constant(rest.rhs)
    if test.lhs is not op.rhs or not is_negative or mended.lhs is not op.rhs:
        return None
    if int_constant(mended.rhs) != divisor:
        return None
    return _mask(rest.lhs, divisor, site)


def what_division_leaves(op: Operation, site: Site) -> SSAValue | None:
    """x - (x >> k) * 2**k -> x & (2**k - 1); x - (x / c) * c -> x % c."""
    x, y = op.operands
    product = defined_by(y, arith.MuliOp)
    if product is None or (divisor := int_constant(product.rhs)) is None:
        return None
    shifted = defined_by(product.lhs, arith.ShRSIOp)
    if shifted is not None and shifted.lhs is x:
        k = power_of_two(divisor)
        same = k is not None and int_constant(shifted.rhs) == k
        return _mask(x, divisor, site) if same else None
    quotient = defined_by(product.lhs, arith.DivSIOp)
    if quotient is None or quotient.lhs is not x or divisor == 0:
        return None
    if int_constant(quotient.rhs) != divisor:
        return None
    return site.insert(arith.RemSIOp(x, quotient.rhs))


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    **dict.fromkeys(DIVISIONS, (divide_by_one,)),
    arith.DivSIOp: (divide_by_one, divide),
    arith.FloorDivSIOp: (divide_by_one, floor_divide),
    arith.DivUIOp: (divide_by_one, to_signed_division),
    arith.RemSIOp: (remainder,),
    arith.RemUIOp: (to_signed_division,),
    arith.SelectOp: (mended_remainder,),
    arith.SubiOp: (what_division_leaves,),
}
