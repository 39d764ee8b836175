"""Simplify logic on i1, select and comparisons.

Comparisons that ranges decide are replaced elsewhere: each integer that has a single
possible value becomes a constant.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from flexc.dialects.constants import int_constant
from flexc.passes.scalar.canonicalization.site import Rule, Site, defined_by, negated
from flexc.passes.scalar.predicates import exchanged, opposite, predicate_of


def is_complement(p: SSAValue, q: SSAValue) -> bool:
    """Return True if one value is the other's negation."""
    if negated(p) is q or negated(q) is p:
        return True
    a, b = defined_by(p, arith.CmpiOp), defined_by(q, arith.CmpiOp)
    if a is None or b is None or (a.lhs, a.rhs) != (b.lhs, b.rhs):
        return False
    return opposite(predicate_of(a)) == predicate_of(b)


def complement(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite p & not p -> false; p | not p -> true; p ^ not p -> true."""
    p, q = op.operands
    if not is_complement(p, q):
        return None
    return site.flag(not isinstance(op, arith.AndIOp))


def absorb(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite p & (p | q) -> p; p | (p & q) -> p; p & (p & q) -> p & q; also bits."""
    p, q = op.operands
    return _absorb(op, p, q) or _absorb(op, q, p)


def _absorb(op: Operation, p: SSAValue, q: SSAValue) -> SSAValue | None:
    inner = defined_by(q, arith.AndIOp) or defined_by(q, arith.OrIOp)
    if inner is None or (inner.lhs is not p and inner.rhs is not p):
        return None
    return q if type(inner) is type(op) else p


def implied(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite (x < c) & (x != c) -> x < c."""
    p, q = op.operands
    return _stronger(p, q) or _stronger(q, p)


def _stronger(p: SSAValue, q: SSAValue) -> SSAValue | None:
    """Return p if p orders two numbers and q says that they differ, else None."""
    order, different = defined_by(p, arith.CmpiOp), defined_by(q, arith.CmpiOp)
    if order is None or different is None or predicate_of(different) != "ne":
        return None
    if predicate_of(order) not in ("slt", "sgt", "ult", "ugt"):
        return None
    if order.lhs is not different.lhs:
        return None
    a, b = int_constant(order.rhs), int_constant(different.rhs)
    same = order.rhs is different.rhs or (a is not None and a == b)
    return p if same else None


def negate_comparison(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite not (x < y) -> x >= y."""
    p, _ = op.operands
    test = defined_by(p, arith.CmpiOp)
    if test is None or negated(op.results[0]) is None:
        return None
    return site.insert(arith.CmpiOp(test.lhs, test.rhs, opposite(predicate_of(test))))


def select_known(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(true, a, b) -> a; select(c, a, a) -> a."""
    assert isinstance(op, arith.SelectOp)
    if op.lhs is op.rhs:
        return op.lhs
    condition = int_constant(op.cond)
    if condition is None:
        return None
    return op.lhs if condition else op.rhs


def select_negated(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(not c, a, b) -> select(c, b, a)."""
    assert isinstance(op, arith.SelectOp)
    if (condition := negated(op.cond)) is None:
        return None
    return site.insert(arith.SelectOp(condition, op.rhs, op.lhs))


def select_nested(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(c, select(c, a, b), d) -> select(c, a, d); likewise for d."""
    assert isinstance(op, arith.SelectOp)
    lhs, rhs = defined_by(op.lhs, arith.SelectOp), defined_by(op.rhs, arith.SelectOp)
    a, b = op.lhs, op.rhs
    if lhs is not None and lhs.cond is op.cond:
        a = lhs.lhs
    if rhs is not None and rhs.cond is op.cond:
        b = rhs.rhs
    if a is op.lhs and b is op.rhs:
        return None
    return site.insert(arith.SelectOp(op.cond, a, b))


def select_flag(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite a select of i1 as logic, such as select(c, a, false) -> c & a."""
    assert isinstance(op, arith.SelectOp)
    if op.result.type != i1:
        return None
    c, a, b = op.cond, op.lhs, op.rhs
    if a is c or int_constant(a) == -1:
        return site.insert(arith.OrIOp(c, b))
    if b is c or int_constant(b) == 0:
        return site.insert(arith.AndIOp(c, a))
    if int_constant(a) == 0:
        return site.insert(arith.AndIOp(site.negate(c), b))
    if int_constant(b) == -1:
        return site.insert(arith.OrIOp(site.negate(c), a))
    return None


def select_equal(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(x == y, x, y) -> y; select(x != y, x, y) -> x."""
    assert isinstance(op, arith.SelectOp)
    test = defined_by(op.cond, arith.CmpiOp)
    if test is None or {test.lhs, test.rhs} != {op.lhs, op.rhs}:
        return None
    match predicate_of(test):
        case "eq":
            return op.rhs
        case "ne":
            return op.lhs
        case _:
            return None


REFLEXIVE = ("eq", "sle", "sge", "ule", "uge")

TRUE_OF_EQUALS = ("true", "ueq", "uge", "ule")
FALSE_OF_EQUALS = ("false", "one", "ogt", "olt")


def constant_to_the_right(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite c < x -> x > c."""
    assert isinstance(op, arith.CmpiOp)
    if int_constant(op.lhs) is None or int_constant(op.rhs) is not None:
        return None
    return site.insert(arith.CmpiOp(op.rhs, op.lhs, exchanged(predicate_of(op))))


def compare_equals(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x <= x -> true; x < x -> false."""
    assert isinstance(op, arith.CmpiOp)
    if op.lhs is not op.rhs:
        return None
    return site.flag(predicate_of(op) in REFLEXIVE)


def to_signed_comparison(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite unsigned comparisons of nonnegative numbers as signed ones."""
    assert isinstance(op, arith.CmpiOp)
    predicate = predicate_of(op)
    both = (site.range(op.lhs), site.range(op.rhs))
    if predicate[0] != "u" or not all(r.is_nonnegative for r in both):
        return None
    return site.insert(arith.CmpiOp(op.lhs, op.rhs, "s" + predicate[1:]))


def compare_flags(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite p == true -> p; p == q -> not (p ^ q); inequalities likewise."""
    assert isinstance(op, arith.CmpiOp)
    predicate = predicate_of(op)
    if op.lhs.type != i1 or predicate not in ("eq", "ne"):
        return None
    value = int_constant(op.rhs)
    if value is None:
        differ = site.insert(arith.XOrIOp(op.lhs, op.rhs))
        return differ if predicate == "ne" else site.negate(differ)
    return op.lhs if (value == -1) == (predicate == "eq") else site.negate(op.lhs)


def compare_extended_flag(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite int(p) != 0 -> p; int(p) == 1 -> p; the opposite tests to not p."""
    assert isinstance(op, arith.CmpiOp)
    predicate, value = predicate_of(op), int_constant(op.rhs)
    extended = defined_by(op.lhs, arith.ExtUIOp)
    if extended is None or extended.input.type != i1:
        return None
    if value not in (0, 1) or predicate not in ("eq", "ne"):
        return None
    flag = extended.input
    return flag if (value == 1) == (predicate == "eq") else site.negate(flag)


def compare_extended(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite extsi x < extsi y -> x < y; all predicates keep their meaning."""
    assert isinstance(op, arith.CmpiOp)
    a, b = defined_by(op.lhs, arith.ExtSIOp), defined_by(op.rhs, arith.ExtSIOp)
    if a is None or b is None or a.input.type != b.input.type or a.input.type == i1:
        return None
    return site.insert(arith.CmpiOp(a.input, b.input, predicate_of(op)))


def compare_equal_floats(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite comparisons of x with itself whose result does not depend on NaN."""
    assert isinstance(op, arith.CmpfOp)
    predicate = predicate_of(op)
    if predicate in ("true", "false"):
        return site.flag(predicate == "true")
    if op.lhs is not op.rhs:
        return None
    if predicate in TRUE_OF_EQUALS:
        return site.flag(True)
    return site.flag(False) if predicate in FALSE_OF_EQUALS else None


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.AndIOp: (complement, absorb, implied),
    arith.OrIOp: (complement, absorb),
    arith.XOrIOp: (complement, negate_comparison),
    arith.SelectOp: (
        select_known,
        select_negated,
        select_nested,
        select_flag,
        select_equal,
    ),
    arith.CmpiOp: (
        compare_equals,
        constant_to_the_right,
        to_signed_comparison,
        compare_flags,
        compare_extended_flag,
        compare_extended,
    ),
    arith.CmpfOp: (compare_equal_floats,),
}
