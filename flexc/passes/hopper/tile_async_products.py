"""`tile-async-products`: products are issued, and waited for where they are used.

Products of one warp group complete in the order in which they were issued. Each is
waited for right before the first op that needs its result, and at the latest where its
block ends or a loop begins: none is in flight from one iteration to the next, for which
ptxas would make all of them wait. What runs in between runs beside the product.

A slot is given back where the products that were issued before that are complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

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
from flexc.passes.hopper.products_in_flight import complete_before
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_access import is_zero

VIEW_USERS = (
    SlotOp,
    TransposeViewOp,
    tile.DotOp,
    IssueDotOp,
    WriteViewOp,
    CopyInOp,
    CopyOutOp,
)


@dataclass
class InFlight:
    """A product that was issued, and what waits for it.

    `result` is what stands for its result until it is waited for.
    """

    issue: IssueDotOp
    result: SSAValue
    releases: list[ArriveOp] = field(default_factory=list[ArriveOp])


class AsyncProducts:
    """Rewrites one block: the products in flight, in the order of their issue."""

    def __init__(self) -> None:
        self.in_flight: list[InFlight] = []

    def run(self, block: Block) -> None:
        """Make the products of a block asynchronous, and those of blocks within."""
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
        """Issue a product. What it is added to is left out if that is 0."""
        assert isinstance(dot.result.type, TileType)
        acc = None if is_zeros(dot.acc) else dot.acc
        new = IssueDotOp(dot.lhs, dot.rhs, acc, dot.result.type)
        new.attributes |= dot.attributes
        new.result.name_hint = f"{dot.result.name_hint or 'product'}_issued"
        ScalarCode(InsertPoint.before(dot)).builder.insert(new)
        self.in_flight.append(InFlight(new, dot.result))

    def complete_first(self, op: Operation) -> None:
        """Wait before an op for the product that was issued first."""
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
    """The result of a product that is complete, under the product's name."""
    done.result.name_hint = dot.result.name_hint
    return done.result


def is_zeros(value: SSAValue) -> bool:
    """Whether all of a tile's elements are the constant 0."""
    return isinstance(value.owner, tile.FullOp) and is_zero(value.owner.value)


def check_views(role: RoleOp) -> None:
    """Raise if shared memory is read by anything but products and copies."""
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
