"""`tile-async-products`: issue products, and wait for each where its result is used.

Products of one warp group complete in the order of their issue. The wait for a product
comes right before the first op that needs the result, and at the latest at the end of
the block or before a loop. No product is in flight from one iteration to the next:
ptxas would make all products wait. Ops between issue and wait overlap with the product.

A slot is released once the products issued before the release are complete.

`tile-split-loops`: write a loop whose first iterations take a branch as two loops.

A loop over a mixed segment applies the mask in its first iterations:

    for i in 1 to n:                    for i in 1 to min(m, n):
        s = product(i)                      s = mask(product(i))
        if i < m: s = mask(s)      =>       softmax(s)
        softmax(s)                      for i in max(1, m) to n:
                                            softmax(product(i))

ptxas moves the wait for a product up to the start of a block of instructions, and a
branch starts a new block. So with a branch the vector units wait for a product that
should run beside them, in all iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from flexc.dialects import tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.constants import int_constant
from flexc.dialects.tile import TileType
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitDotOp,
    IssueDotOp,
    ReadViewOp,
    RoleOp,
    SlotOp,
    TakeColumnsOp,
    TransposeViewOp,
    ViewType,
    WriteViewOp,
)
from flexc.dialects.tile.schedule.memory import CopyInOp, CopyOutOp
from flexc.errors import ScheduleError
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_access import is_zeros

VIEW_USERS = (
    SlotOp,
    TransposeViewOp,
    TakeColumnsOp,
    tile.DotOp,
    IssueDotOp,
    WriteViewOp,
    ReadViewOp,
    CopyInOp,
    CopyOutOp,
)


MOST_IN_FLIGHT = 2
"""The most products in flight at once; ptxas serializes all products if there are more.

A chain of products of one sum counts as one.
"""


def complete_before(op: Operation, in_flight: Sequence[SSAValue]) -> int:
    """Return how many products, in issue order, must be complete before an op.

    `in_flight` has the results of the products of the op's block that were issued and
    not yet awaited, in issue order.
    """
    count = len(in_flight)
    if not needs_all(op):
        used = {value for inner in op.walk() for value in inner.operands}
        while count and in_flight[count - 1] not in used:
            if isinstance(op, WriteViewOp) and reads_slots(in_flight[count - 1], op):
                break
            count -= 1
    return count


def reads_slots(product: SSAValue, write: WriteViewOp) -> bool:
    """Return True if a product reads the slots that an op writes to."""
    dot = product.owner
    assert isinstance(dot, tile.DotOp)
    return any(slots_of(v) is slots_of(write.view) for v in (dot.lhs, dot.rhs))


def slots_of(view: SSAValue) -> SSAValue | None:
    """Return the shared memory that a view lies in, or None for another value."""
    while isinstance(view.owner, TransposeViewOp | TakeColumnsOp):
        view = view.owner.operands[0]
    return view.owner.shared if isinstance(view.owner, SlotOp) else None


def needs_all(op: Operation) -> bool:
    """Return True if no product may be in flight when an op runs."""
    if isinstance(op, scf.ForOp) or op.has_trait(IsTerminator):
        return True
    inside = (inner for inner in op.walk() if inner is not op)
    return any(isinstance(inner, tile.DotOp | ArriveOp) for inner in inside)


@dataclass
class InFlight:
    """A product that was issued, and the releases that wait for it.

    `result` is the value that uses refer to until the wait replaces it.
    """

    issue: IssueDotOp
    result: SSAValue
    releases: list[ArriveOp] = field(default_factory=list[ArriveOp])
    count: int = 1
    """The number of products in a chain, each of which is added to by the next."""


class AsyncProducts:
    """A rewrite of one block that tracks the products in flight, in issue order."""

    def __init__(self) -> None:
        self.in_flight: list[InFlight] = []

    def run(self, block: Block) -> None:
        """Make the products of a block and of its nested blocks asynchronous."""
        for op in list(block.ops):
            for _ in range(self.complete_before(op)):
                self.complete_first(op)
            if isinstance(op, tile.DotOp) and isinstance(op.rhs.type, ViewType):
                self.issue(op)
            elif isinstance(op, ArriveOp) and op.after_products is not None:
                op.after_products = None
                if self.in_flight:
                    op.detach()
                    self.in_flight[-1].releases.append(op)
            for region in op.regions:
                if not isinstance(op, tile.MapOp):
                    for inner in region.blocks:
                        AsyncProducts().run(inner)

    def complete_before(self, op: Operation) -> int:
        """Return how many entries of `in_flight` must be complete before an op."""
        results = [product.result for product in self.in_flight]
        if not isinstance(op, tile.DotOp):
            return complete_before(op, results)
        if self.continues_last(op):
            results.pop()
        return max(complete_before(op, results), len(results) - MOST_IN_FLIGHT + 1)

    def issue(self, dot: tile.DotOp) -> None:
        """Issue a product, without an accumulator if that is 0."""
        assert isinstance(dot.result.type, TileType)
        acc = None if is_zeros(dot.acc) else dot.acc
        earlier = self.in_flight.pop() if self.continues_last(dot) else None
        if earlier is not None:
            acc = earlier.issue.result
        new = IssueDotOp(dot.lhs, dot.rhs, acc, dot.result.type)
        new.attributes |= dot.attributes
        new.result.name_hint = f"{dot.result.name_hint or 'product'}_issued"
        ScalarCode(InsertPoint.before(dot)).builder.insert(new)
        product = InFlight(new, dot.result)
        if earlier is not None:
            product.count += earlier.count
            product.releases += earlier.releases
        self.in_flight.append(product)

    def continues_last(self, dot: tile.DotOp) -> bool:
        """Return True if a product is added to the one that was issued last.

        The accumulator stays in its registers, so there is no wait between the two.
        """
        last = self.in_flight[-1].result if self.in_flight else None
        return dot.acc is last and dot.acc.has_one_use()

    def complete_first(self, op: Operation) -> None:
        """Insert before an op the wait for the product that was issued first."""
        first = self.in_flight.pop(0)
        code = ScalarCode(InsertPoint.before(op))
        later = sum(product.count for product in self.in_flight)
        done = AwaitDotOp(first.issue.result, later)
        dot = first.result.owner
        assert isinstance(dot, tile.DotOp)
        code.builder.insert(done)
        Rewriter.replace_op(dot, [], [code_result(done, dot)])
        for release in first.releases:
            code.builder.insert(release)


def code_result(done: AwaitDotOp, dot: tile.DotOp) -> SSAValue:
    """Return the result of a completed product, named like the product."""
    done.result.name_hint = dot.result.name_hint
    return done.result


def check_views(role: RoleOp) -> None:
    """Raise `ScheduleError` if other ops than products and copies use a view."""
    for op in role.body.walk():
        if isinstance(op, VIEW_USERS):
            continue
        if any(isinstance(v.type, ViewType) for v in op.operands):
            raise ScheduleError(f"{op.name} reads a tile in shared memory")


@dataclass(frozen=True)
class TileAsyncProductsPass(ModulePass):
    """Issue the products of roles, and wait for them where they are used."""

    name = "tile-async-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for role in op.walk():
            if isinstance(role, RoleOp):
                check_views(role)
                AsyncProducts().run(role.body.block)


HOLDS_BEFORE = {"slt": True, "sge": False}
"""The result of a comparison of the iteration with a bound, before the bound."""


def comparisons(loop: scf.ForOp) -> Iterator[arith.CmpiOp]:
    """Yield the ops that compare the iteration with a value from outside the loop."""
    for op in loop.body.block.ops:
        if isinstance(op, arith.CmpiOp) and op.lhs is loop.body.block.args[0]:
            predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
            if predicate in HOLDS_BEFORE and not loop.is_ancestor(op.rhs.owner):
                yield op


def bound_of(loop: scf.ForOp) -> SSAValue | None:
    """Return the bound that a branch of the loop's body compares the iteration with."""
    if int_constant(loop.step) != 1:
        return None
    for op in comparisons(loop):
        branches = (isinstance(use.operation, scf.IfOp) for use in op.result.uses)
        if any(branches):
            return op.rhs
    return None


def decide(loop: scf.ForOp, bound: SSAValue, is_before: bool) -> None:
    """Replace comparisons with a bound, of which all iterations are on one side."""
    for op in list(comparisons(loop)):
        if op.rhs is not bound:
            continue
        predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        holds = HOLDS_BEFORE[predicate] == is_before
        for branch in [use.operation for use in op.result.uses]:
            if isinstance(branch, scf.IfOp):
                take(branch, holds)
        flag = ScalarCode(InsertPoint.before(op)).flag(holds)
        op.result.replace_all_uses_with(flag)
        Rewriter.erase_op(op)


def take(branch: scf.IfOp, holds: bool) -> None:
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


def split(loop: scf.ForOp, bound: SSAValue) -> None:
    """Split a loop's iterations at a bound."""
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
        decide(part, bound, part is first)
        if "segment" in part.attributes:
            part.attributes["segment"] = SegmentKindAttr(kind)


@dataclass(frozen=True)
class TileSplitLoopsPass(ModulePass):
    """Split loops of roles whose first iterations take a branch."""

    name = "tile-split-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        roles = [role for role in op.walk() if isinstance(role, RoleOp)]
        for loop in [o for role in roles for o in role.walk()]:
            if isinstance(loop, scf.ForOp) and (bound := bound_of(loop)) is not None:
                split(loop, bound)
