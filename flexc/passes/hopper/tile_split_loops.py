"""`tile-split-loops`: write a loop whose first iterations take a branch as two loops.

A loop over a mixed segment applies the mask in its first iterations:

    for i in 1 to n:                    for i in 1 to min(m, n):
        s = product(i)                      s = mask(product(i))
        if i < m: s = mask(s)      =>       softmax(s)
        softmax(s)                      for i in max(1, m) to n:
                                            softmax(product(i))

ptxas moves the wait for a product up to the start of a block of instructions, and a
branch starts a new block. So with a branch the vector units wait for a product that
should run beside them, in all iterations. A condition from outside the loop, such as
that a program has rows beyond the last, becomes part of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.constants import int_constant
from flexc.dialects.tile.schedule import RoleOp
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.scalar_code import ScalarCode, combined

HOLDS_BEFORE = {"slt": True, "sge": False}
"""The result of a comparison of the iteration with a bound, before the bound."""


def comparisons(loop: scf.ForOp) -> Iterator[arith.CmpiOp]:
    """Yield the ops that compare the iteration with a value from outside the loop."""
    for op in loop.body.block.ops:
        if isinstance(op, arith.CmpiOp) and op.lhs is loop.body.block.args[0]:
            predicate = predicate_of(op)
            if predicate in HOLDS_BEFORE and not loop.is_ancestor(op.rhs.owner):
                yield op


def move_condition(loop: scf.ForOp) -> SSAValue | None:
    """Make a condition from outside a loop part of the bound of its only branch.

    A branch that is taken in the first iterations, or in all, is taken before a bound:

        if outside or i < m        =>        if i < (n if outside else m)

    Return m, which no iteration after the new bound is before, or None.
    """
    branches = [op for op in loop.body.block.ops if isinstance(op, scf.IfOp)]
    if len(branches) != 1 or int_constant(loop.step) != 1:
        return None
    (branch,) = branches
    leaves = list(disjuncts(branch.cond))
    outer = [value for value in leaves if not loop.is_ancestor(value.owner)]
    own = [
        o for o in comparisons(loop) if o.result in leaves and predicate_of(o) == "slt"
    ]
    if len(own) != 1 or len(leaves) != len(outer) + 1:
        return None
    code = ScalarCode(InsertPoint.before(loop))
    always = combined(code.or_, outer)
    if always is None:
        return None
    bound = code.select(always, loop.ub, own[0].rhs)
    within = ScalarCode(InsertPoint.before(branch))
    branch.operands[0] = within.cmp("slt", loop.body.block.args[0], bound)
    return own[0].rhs


def disjuncts(condition: SSAValue) -> Iterator[SSAValue]:
    """Yield the operands of nested disjunctions, or the condition itself."""
    if isinstance(op := condition.owner, arith.OrIOp):
        yield from disjuncts(op.lhs)
        yield from disjuncts(op.rhs)
    else:
        yield condition


def bound_of(loop: scf.ForOp) -> SSAValue | None:
    """Return the bound before which iterations take a branch of the loop's body."""
    if int_constant(loop.step) != 1:
        return None
    for op in comparisons(loop):
        branches = (isinstance(use.operation, scf.IfOp) for use in op.result.uses)
        if predicate_of(op) == "slt" and any(branches):
            return op.rhs
    return None


def settle_comparisons(loop: scf.ForOp, bound: SSAValue, is_before: bool) -> None:
    """Replace comparisons with a bound, of which all iterations are on one side."""
    for op in list(comparisons(loop)):
        if op.rhs is not bound:
            continue
        predicate = predicate_of(op)
        holds = HOLDS_BEFORE[predicate] == is_before
        for branch in [use.operation for use in op.result.uses]:
            if isinstance(branch, scf.IfOp):
                inline_branch(branch, holds)
        flag = ScalarCode(InsertPoint.before(op)).flag(holds)
        op.result.replace_all_uses_with(flag)
        Rewriter.erase_op(op)


def inline_branch(branch: scf.IfOp, holds: bool) -> None:
    """Replace an `scf.if` by one of its branches."""
    region = branch.true_region if holds else branch.false_region
    results: list[SSAValue] = []
    if region.blocks:
        end = region.block.last_op
        assert end is not None
        results = list(end.operands)
        Rewriter.erase_op(end)
        Rewriter.inline_block(region.block, InsertPoint.before(branch))
    for old, new in zip(branch.results, results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(branch)


def split(loop: scf.ForOp, bound: SSAValue, passed: SSAValue | None) -> None:
    """Split a loop's iterations at a bound, after which they have passed another."""
    code = ScalarCode(InsertPoint.before(loop))
    first = loop.clone()
    code.builder.insert(first)
    ends = ScalarCode(InsertPoint.before(first))
    first.operands[1] = ends.min(bound, loop.ub)
    loop.operands[0] = ends.max(loop.lb, bound)
    for i, value in enumerate(first.results):
        loop.operands[3 + i] = value
        value.name_hint = loop.body.block.args[1 + i].name_hint
    kinds = {first: SegmentKind.PARTIAL, loop: SegmentKind.FULL}
    for part, kind in kinds.items():
        settle_comparisons(part, bound, part is first)
        if passed is not None and part is loop:
            settle_comparisons(part, passed, is_before=False)
        if "segment" in part.attributes:
            part.attributes["segment"] = SegmentKindAttr(kind)


@dataclass(frozen=True)
class TileSplitLoopsPass(ModulePass):
    """Split loops of roles whose first iterations take a branch."""

    name = "tile-split-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        roles = [role for role in op.walk() if isinstance(role, RoleOp)]
        for loop in [o for role in roles for o in role.walk()]:
            if not isinstance(loop, scf.ForOp):
                continue
            passed = move_condition(loop)
            if (bound := bound_of(loop)) is not None:
                split(loop, bound, passed)
