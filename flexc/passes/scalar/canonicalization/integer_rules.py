"""Identities of integer arithmetic and bits; all hold where results wrap."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    float_constant,
    int_constant,
    power_of_two,
)
from flexc.passes.scalar.ranges.value_ranges import width_of


def constant_to_the_right(op: Operation, site: Site) -> SSAValue | None:
    """c + x -> x + c, for all ops that commute."""
    lhs, rhs = op.operands
    if not _is_constant(lhs) or _is_constant(rhs):
        return None
    build: type = type(op)
    return site.insert(build(rhs, lhs))


def _is_constant(value: SSAValue) -> bool:
    return int_constant(value) is not None or float_constant(value) is not None


def add(op: Operation, site: Site) -> SSAValue | None:
    """x + 0 -> x; (x + a) + b -> x + (a + b); (x - y) + y -> x."""
    x, y = op.operands
    if (right := int_constant(y)) is None:
        return _undo(arith.SubiOp, x, y) or _undo(arith.SubiOp, y, x)
    return x if right == 0 else _add_constants(x, right, site)


def subtract(op: Operation, site: Site) -> SSAValue | None:
    """x - x -> 0; x - 0 -> x; (x + a) - b -> x + (a - b); (x + y) - y -> x."""
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
    """x + right, where x is itself a sum with a constant."""
    inner = defined_by(x, arith.AddiOp)
    if inner is None or (left := int_constant(inner.rhs)) is None:
        return None
    total = site.const(left + right, x.type)
    return site.insert(arith.AddiOp(inner.lhs, total))


def _undo(
    kind: type[arith.AddiOp] | type[arith.SubiOp], value: SSAValue, y: SSAValue
) -> SSAValue | None:
    """x, if the value is x + y or x - y."""
    op = defined_by(value, kind)
    return op.lhs if op is not None and op.rhs is y else None


def multiply(op: Operation, site: Site) -> SSAValue | None:
    """x * 0 -> 0; x * 1 -> x."""
    x, y = op.operands
    match int_constant(y):
        case 0:
            return y
        case 1:
            return x
        case _:
            # The only other number of an i1 is -1, which is 1.
            return x if width_of(x.type) == 1 and int_constant(y) else None


def bit_and(op: Operation, site: Site) -> SSAValue | None:
    """x & x -> x; x & 0 -> 0; x & -1 -> x; x & (2**k - 1) -> x for 0 <= x < 2**k."""
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
    """x | x -> x; x | 0 -> x; x | -1 -> -1."""
    x, y = op.operands
    bits = int_constant(y)
    if x is y or bits == 0:
        return x
    return y if bits == -1 else None


def bit_xor(op: Operation, site: Site) -> SSAValue | None:
    """x ^ x -> 0; x ^ 0 -> x; (x ^ y) ^ y -> x, and so not not x -> x."""
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
    """x << 0 -> x, and both right shifts."""
    return op.operands[0] if int_constant(op.operands[1]) == 0 else None


def shift_right_unsigned(op: Operation, site: Site) -> SSAValue | None:
    """The arithmetic shift, of what has no sign."""
    x, y = op.operands
    if int_constant(y) is None or not site.range(x).is_nonnegative:
        return None
    return site.insert(arith.ShRSIOp(x, y))


def extremum(op: Operation, site: Site) -> SSAValue | None:
    """max(x, x) -> x; the larger, where ranges tell."""
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
    """The signed one, of numbers without signs."""
    x, y = op.operands
    if not (site.range(x).is_nonnegative and site.range(y).is_nonnegative):
        return None
    kind = arith.MinSIOp if isinstance(op, arith.MinUIOp) else arith.MaxSIOp
    return site.insert(kind(x, y))


def absolute(op: Operation, site: Site) -> SSAValue | None:
    """|x| -> x for x >= 0."""
    x = op.operands[0]
    return x if site.range(x).is_nonnegative else None


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.AddiOp: (constant_to_the_right, add),
    arith.SubiOp: (subtract,),
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
}
