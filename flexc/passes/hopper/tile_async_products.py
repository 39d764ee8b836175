"""`tile-async-products`: issue products, and wait for each where its result is used.

Products of one warp group complete in the order of their issue. The wait for a product
comes right before the first op that needs the result, and at the latest at the end of
the block or before a loop. No product is in flight from one iteration to the next:
ptxas would make all products wait. Ops between issue and wait overlap with the product.

A slot is released once the products issued before the release are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from flexc.dialects import tile
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
