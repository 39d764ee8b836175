"""`tile-take-turns`: let the copies of a role issue their products one after another.

Where an iteration issues several products before it waits for one, a copy takes the
turn first and passes it on once they are issued:

    for i:                       for i:
        s = issue(q, k)              take_turn
        o = issue(p, v)      =>      s = issue(q, k)
        softmax(await(s))            o = issue(p, v)
                                     pass_turn
                                     softmax(await(s))

Without turns, copies drift into the same phase: their products then wait for each
other, and tensor cores wait for the exponentials of all. See Shah et al.,
"FlashAttention-3", 2024, section 3.1.

All copies must take equally many turns, so the loop's bounds must not depend on the
copy. The last copy passes the turn to the first one at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects.tile.schedule import (
    AwaitDotOp,
    IssueDotOp,
    PassTurnOp,
    RoleOp,
    TakeTurnOp,
)
from flexc.passes.hopper.specialize_warps.slices import dependent_on
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.gluon import PART_WARPS

MOST_COPIES = 6
"""The most copies that take turns: each has a named barrier (`FIRST_TURN`)."""


def issued_together(body: Block) -> Sequence[IssueDotOp]:
    """Return a block's products if all are issued before the first wait, else none.

    Waits for tiles from the producer may stand between them, but none for what another
    copy of the role computes.
    """
    issued: list[IssueDotOp] = []
    has_waited = False
    for op in body.ops:
        if isinstance(op, IssueDotOp):
            if has_waited:
                return ()
            issued.append(op)
        has_waited |= bool(issued) and isinstance(op, AwaitDotOp)
    return issued if len(issued) > 1 else ()


def take_turns(role: RoleOp) -> None:
    """Write turns around the products of a role's loops."""
    part, copies = role.body.block.args[0], role.copies.value.data
    if role.warps.value.data != PART_WARPS or not 1 < copies <= MOST_COPIES:
        return
    varying = dependent_on(part)
    loops = [
        (op, issued)
        for op in role.body.block.ops
        if isinstance(op, scf.ForOp)
        and (issued := issued_together(op.body.block))
        and varying.isdisjoint((op.lb, op.ub, op.step))
    ]
    if not loops:
        return
    for loop, issued in loops:
        first = loop.body.block.first_op
        assert first is not None
        Rewriter.insert_op(TakeTurnOp(part), InsertPoint.before(first))
        Rewriter.insert_op(PassTurnOp(part), InsertPoint.after(issued[-1]))
    code = ScalarCode(InsertPoint.at_start(role.body.block))
    is_last = code.cmp("eq", part, code.const(copies - 1))
    is_last.name_hint = "is_last"
    start = Region(Block([PassTurnOp(part), scf.YieldOp()]))
    code.builder.insert(scf.IfOp(is_last, [], start))


@dataclass(frozen=True)
class TileTakeTurnsPass(ModulePass):
    """Let the copies of a role issue their products one after another."""

    name = "tile-take-turns"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for role in op.walk():
            if isinstance(role, RoleOp):
                take_turns(role)
