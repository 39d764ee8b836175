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
    RoleOp,
    SlotOp,
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
    tile.DotOp,
    IssueDotOp,
    WriteViewOp,
    CopyInOp,
    CopyOutOp,
)


def complete_before(op: Operation, in_flight: Sequence[SSAValue]) -> int:
    """Return how many products, in issue order, must be complete before an op.

    `in_flight` has the results of the products of the op's block that were issued and
    not yet awaited, in issue order.
    """
    count = len(in_flight)
    if not needs_all(op):
        used = {value for inner in op.walk() for value in inner.operands}
        while count and in_flight[count - 1] not in used:
            count -= 1
    return count


def needs_all(op: Operation) -> bool:
    """Return True if no product may be in flight when an op runs."""
    if isinstance(op, scf.ForOp | WriteViewOp) or op.has_trait(IsTerminator):
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


class AsyncProducts:
    """A rewrite of one block that tracks the products in flight, in issue order."""

    def __init__(self) -> None:
        self.in_flight: list[InFlight] = []

    def run(self, block: Block) -> None:
        """Make the products of a block and of its nested blocks asynchronous."""
        for op in list(block.ops):
            results = [product.result for product in self.in_flight]
            for _ in range(complete_before(op, results)):
                self.complete_first(op)
            if isinstance(op, tile.DotOp) and isinstance(op.rhs.type, ViewType):
                self.issue(op)
            elif isinstance(op, ArriveOp) and self.in_flight:
                op.detach()
                self.in_flight[-1].releases.append(op)
            for region in op.regions:
                if not isinstance(op, tile.MapOp):
                    for inner in region.blocks:
                        AsyncProducts().run(inner)

    def issue(self, dot: tile.DotOp) -> None:
        """Issue a product, without an accumulator if that is 0."""
        assert isinstance(dot.result.type, TileType)
        acc = None if is_zeros(dot.acc) else dot.acc
        new = IssueDotOp(dot.lhs, dot.rhs, acc, dot.result.type)
        new.attributes |= dot.attributes
        new.result.name_hint = f"{dot.result.name_hint or 'product'}_issued"
        ScalarCode(InsertPoint.before(dot)).builder.insert(new)
        self.in_flight.append(InFlight(new, dot.result))

    def complete_first(self, op: Operation) -> None:
        """Insert before an op the wait for the product that was issued first."""
        first = self.in_flight.pop(0)
        code = ScalarCode(InsertPoint.before(op))
        done = AwaitDotOp(first.issue.result, len(self.in_flight))
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
