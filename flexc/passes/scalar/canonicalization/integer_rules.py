"""Simplify integer arithmetic, bit operations and division.

All rules hold if results wrap around. Rules of divisions use ranges and powers of two.
Frontends write Python's `%` as a remainder that rounds towards zero, with a correction
where the sign is wrong. For powers of two, this is a bit mask. For nonnegative numbers,
no correction is needed.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation, SSAValue

from flexc.dialects.constants import int_constant
from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    constant_to_the_right,
    defined_by,
    power_of_two,
)
from flexc.passes.scalar.ranges.exact_ranges import mended_remainder
from flexc.passes.scalar.ranges.value_ranges import width_of


def add(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x + 0 -> x; (x + a) + b -> x + (a + b); (x - y) + y -> x."""
    x, y = op.operands
    if (right := int_constant(y)) is None:
        return _undo(arith.SubiOp, x, y) or _undo(arith.SubiOp, y, x)
    return x if right == 0 else _add_constants(x, right, site)


def subtract(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x - x -> 0; x - 0 -> x; (x + a) - b -> x + (a - b); (x + y) - y -> x."""
    x, y = op.operands
    if x is y:
        return site.const(0, x.type)
    if (right := int_constant(y)) is None:
        sum_ = defined_by(x, arith.AddiOp)
        if sum_ is not None and sum_.lhs is y:
            return sum_.rhs
        return _undo(arith.AddiOp, x, y)
    return x if right == 0 else _add_constants(x, -right, site)


def _add_constants(x: SSAValue, right: int, site: Site) -> SSAValue | None:
    """Return x + right where x is a sum with a constant, else None."""
    inner = defined_by(x, arith.AddiOp)
    if inner is None or (left := int_constant(inner.rhs)) is None:
        return None
    total = site.const(left + right, x.type)
    return site.insert(arith.AddiOp(inner.lhs, total))


def _undo(
    kind: type[arith.AddiOp] | type[arith.SubiOp], value: SSAValue, y: SSAValue
) -> SSAValue | None:
    """Return x if the value is x + y or x - y, as `kind` says, else None."""
    op = defined_by(value, kind)
    return op.lhs if op is not None and op.rhs is y else None


def multiply(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x * 0 -> 0; x * 1 -> x."""
    x, y = op.operands
    match int_constant(y):
        case 0:
            return y
        case 1:
            return x
        case _:
            # The only other number of an i1 is -1, which stands for 1.
            return x if width_of(x.type) == 1 and int_constant(y) else None


def bit_and(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite `and` with itself and with constants.

    x & x -> x; x & 0 -> 0; x & -1 -> x; x & (2**k - 1) -> x for 0 <= x < 2**k.
    """
    x, y = op.operands
    mask = int_constant(y)
    if x is y or mask == -1:
        return x
    if mask == 0:
        return y
    if mask is None or power_of_two(mask + 1) is None:
        return None
    values = site.range(x)
    return x if values.is_nonnegative and values.hi <= mask else None


def bit_or(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x | x -> x; x | 0 -> x; x | -1 -> -1."""
    x, y = op.operands
    bits = int_constant(y)
    if x is y or bits == 0:
        return x
    return y if bits == -1 else None


def bit_xor(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x ^ x -> 0; x ^ 0 -> x; (x ^ y) ^ y -> x, such as not not x -> x."""
    x, y = op.operands
    if x is y:
        return site.const(0, x.type)
    bits = int_constant(y)
    if bits == 0:
        return x
    inner = defined_by(x, arith.XOrIOp)
    if inner is None:
        return None
    same = inner.rhs is y or (bits is not None and int_constant(inner.rhs) == bits)
    return inner.lhs if same else None


def shift(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x << 0 -> x, and right shifts by 0 likewise."""
    return op.operands[0] if int_constant(op.operands[1]) == 0 else None


def shift_right_unsigned(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite a logical right shift of a nonnegative number as an arithmetic one."""
    x, y = op.operands
    if int_constant(y) is None or not site.range(x).is_nonnegative:
        return None
    return site.insert(arith.ShRSIOp(x, y))


def extremum(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite max(x, x) -> x, and max(x, y) -> x if ranges prove x >= y. Also
    minima.
    """
    x, y = op.operands
    if x is y:
        return x
    a, b = site.range(x), site.range(y)
    if a.hi <= b.lo:
        return x if isinstance(op, arith.MinSIOp) else y
    if b.hi <= a.lo:
        return y if isinstance(op, arith.MinSIOp) else x
    return None


def unsigned_extremum(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite unsigned minima and maxima of nonnegative numbers as signed ones."""
    x, y = op.operands
    if not (site.range(x).is_nonnegative and site.range(y).is_nonnegative):
        return None
    kind = arith.MinSIOp if isinstance(op, arith.MinUIOp) else arith.MaxSIOp
    return site.insert(kind(x, y))


def absolute(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite |x| -> x for x >= 0."""
    x = op.operands[0]
    return x if site.range(x).is_nonnegative else None


DIVISIONS = (
    arith.DivSIOp,
    arith.FloorDivSIOp,
    arith.CeilDivSIOp,
    arith.DivUIOp,
    arith.CeilDivUIOp,
)


def divide_by_one(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x / 1 -> x."""
    return op.operands[0] if int_constant(op.operands[1]) == 1 else None


def divide(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x / c -> 0 for 0 <= x < c; x / 2**k -> x >> k for x >= 0."""
    x, y = op.operands
    divisor, values = int_constant(y), site.range(x)
    if divisor is None or divisor <= 0 or not values.is_nonnegative:
        return None
    if values.hi < divisor:
        return site.const(0, x.type)
    return _shift(x, divisor, site)


def floor_divide(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite floor(x / 2**k) -> x >> k; floor(x / y) -> x / y for x >= 0 and y > 0."""
    x, y = op.operands
    divisor = int_constant(y)
    if divisor is not None and (shifted := _shift(x, divisor, site)) is not None:
        return shifted
    if not site.range(x).is_nonnegative or site.range(y).lo <= 0:
        return None
    return site.insert(arith.DivSIOp(x, y))


def _shift(x: SSAValue, divisor: int, site: Site) -> SSAValue | None:
    """Return floor(x / divisor) as a shift for a power of two, else None."""
    if (k := power_of_two(divisor)) is None:
        return None
    return site.insert(arith.ShRSIOp(x, site.const(k, x.type)))


def remainder(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite remainders by a constant c, where x % c has the sign of x.

    x % 1 -> 0; x % c -> x for 0 <= x < c; x % 2**k -> x & (2**k - 1) for x >= 0.
    """
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
    """Return x - divisor * floor(x / divisor) for a power of two, else None."""
    if divisor is None or power_of_two(divisor) is None:
        return None
    return site.insert(arith.AndIOp(x, site.const(divisor - 1, x.type)))


def to_signed_division(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite unsigned division of nonnegative numbers as signed division."""
    x, y = op.operands
    if not (site.range(x).is_nonnegative and site.range(y).lo > 0):
        return None
    kind = arith.DivSIOp if isinstance(op, arith.DivUIOp) else arith.RemSIOp
    return site.insert(kind(x, y))


def mask_of_remainder(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(r < 0, r + 2**k, r) -> x & (2**k - 1), r = x rem 2**k.

    See `mended_remainder` for other tests of the sign.
    """
    rest = mended_remainder(op.results[0])
    return None if rest is None else _mask(rest.lhs, int_constant(rest.rhs), site)


def what_division_leaves(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x - (x >> k) * 2**k -> x & (2**k - 1); x - (x / c) * c -> x % c."""
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
    arith.AddiOp: (constant_to_the_right, add),
    arith.SubiOp: (subtract, what_division_leaves),
    arith.MuliOp: (constant_to_the_right, multiply),
    arith.AndIOp: (constant_to_the_right, bit_and),
    arith.OrIOp: (constant_to_the_right, bit_or),
    arith.XOrIOp: (constant_to_the_right, bit_xor),
    arith.ShLIOp: (shift,),
    arith.ShRSIOp: (shift,),
    arith.ShRUIOp: (shift, shift_right_unsigned),
    arith.MinSIOp: (constant_to_the_right, extremum),
    arith.MaxSIOp: (constant_to_the_right, extremum),
    arith.MinUIOp: (constant_to_the_right, unsigned_extremum),
    arith.MaxUIOp: (constant_to_the_right, unsigned_extremum),
    math_dialect.AbsIOp: (absolute,),
    **dict.fromkeys(DIVISIONS, (divide_by_one,)),
    arith.DivSIOp: (divide_by_one, divide),
    arith.FloorDivSIOp: (divide_by_one, floor_divide),
    arith.DivUIOp: (divide_by_one, to_signed_division),
    arith.RemSIOp: (remainder,),
    arith.RemUIOp: (to_signed_division,),
    arith.SelectOp: (mask_of_remainder,),
}
