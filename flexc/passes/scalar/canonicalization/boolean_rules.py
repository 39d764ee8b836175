"""Logic on i1, and select."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    int_constant,
    negated,
    predicate_of,
)

INVERSE = {
    "eq": "ne",
    "ne": "eq",
    "slt": "sge",
    "sge": "slt",
    "sle": "sgt",
    "sgt": "sle",
    "ult": "uge",
    "uge": "ult",
    "ule": "ugt",
    "ugt": "ule",
}


def is_complement(p: SSAValue, q: SSAValue) -> bool:
    """Whether one is the other's negation."""
    if negated(p) is q or negated(q) is p:
        return True
    a, b = defined_by(p, arith.CmpiOp), defined_by(q, arith.CmpiOp)
    if a is None or b is None or (a.lhs, a.rhs) != (b.lhs, b.rhs):
        return False
    return INVERSE[predicate_of(a)] == predicate_of(b)


def complement(op: Operation, site: Site) -> SSAValue | None:
    """p & not p -> false; p | not p -> true; p ^ not p -> true."""
    p, q = op.operands
    if not is_complement(p, q):
        return None
    return site.flag(not isinstance(op, arith.AndIOp))


def absorb(op: Operation, site: Site) -> SSAValue | None:
    """p & (p | q) -> p; p | (p & q) -> p; p & (p & q) -> p & q; also of bits."""
    p, q = op.operands
    return _absorb(op, p, q) or _absorb(op, q, p)


def _absorb(op: Operation, p: SSAValue, q: SSAValue) -> SSAValue | None:
    inner = defined_by(q, arith.AndIOp) or defined_by(q, arith.OrIOp)
    if inner is None or (inner.lhs is not p and inner.rhs is not p):
        return None
    return q if type(inner) is type(op) else p


def implied(op: Operation, site: Site) -> SSAValue | None:
    """(x < c) & (x != c) -> x < c."""
    p, q = op.operands
    return _stronger(p, q) or _stronger(q, p)


def _stronger(p: SSAValue, q: SSAValue) -> SSAValue | None:
    """p, if q says no more than that two numbers, which p orders, differ."""
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
    """not (x < y) -> x >= y."""
    p, _ = op.operands
    test = defined_by(p, arith.CmpiOp)
    if test is None or negated(op.results[0]) is None:
        return None
    return site.insert(arith.CmpiOp(test.lhs, test.rhs, INVERSE[predicate_of(test)]))


def select_known(op: Operation, site: Site) -> SSAValue | None:
    """select(true, a, b) -> a; select(c, a, a) -> a."""
    assert isinstance(op, arith.SelectOp)
    if op.lhs is op.rhs:
        return op.lhs
    condition = int_constant(op.cond)
    if condition is None:
        return None
    return op.lhs if condition else op.rhs


def select_negated(op: Operation, site: Site) -> SSAValue | None:
    """select(not c, a, b) -> select(c, b, a)."""
    assert isinstance(op, arith.SelectOp)
    if (condition := negated(op.cond)) is None:
        return None
    return site.insert(arith.SelectOp(condition, op.rhs, op.lhs))


def select_nested(op: Operation, site: Site) -> SSAValue | None:
    """select(c, select(c, a, b), d) -> select(c, a, d), and on the other side."""
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
    """select of an i1 as logic: select(c, a, false) -> c & a."""
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
    """select(x == y, x, y) -> y; select(x != y, x, y) -> x."""
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
}
