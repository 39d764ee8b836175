"""`tile-insert-copies`: let every tile that a loop carries stay in one buffer.

The initial value, the loop's argument, what it yields and its result share a
buffer. That is sound if none is alive while another is written, which holds
except in the cases below, where a copy is put in between (of a constant tile:
another constant tile, as dear as a copy).

1. An initial value that is used elsewhere, or carried already.
2. A yielded value that the body does not compute: one from outside the loop,
   another argument, or a value yielded twice.
3. A yielded value that is computed before the argument's last use, unless by an
   op that may overwrite it.

The same holds for what the branches of an `scf.if` yield: they compute it.
An op that updates its operand's buffer, a product with an accumulator, needs an
operand that dies there; one that lives on is copied before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from flexc.dialects import tile
from flexc.passes.hopper.tile_liveness import (
    ACCUMULATING,
    dies_at,
    home,
    is_tile,
    overwrites,
    user_in,
)
from flexc.passes.scalar.scalar_code import ScalarCode


def duplicate(value: SSAValue, before: Operation) -> SSAValue:
    """The same tile, defined anew."""
    code = ScalarCode(InsertPoint.before(before))
    owner = value.owner
    if isinstance(owner, tile.FullOp):
        return code.insert(owner.clone(), value.name_hint)
    return code.insert(tile.CopyOp(value), value.name_hint)


def written_over(op: Operation) -> range:
    """The operands of an op whose buffers it updates."""
    end = len(op.operands)
    if isinstance(op, scf.ForOp):
        return range(3, end)
    accumulates = isinstance(op, ACCUMULATING) and op.acc is not None
    return range(end - accumulates, end)


def copy_overwritten(op: Operation) -> None:
    """Give an op operands that die there, where it writes over them."""
    for index in written_over(op):
        value = op.operands[index]
        if is_tile(value) and not (dies_at(value, op) and overwrites(op, value)):
            op.operands[index] = duplicate(value, op)


def copy_yielded(body: Block, args: Sequence[BlockArgument | None]) -> None:
    """Make a block yield tiles that may be in the buffers of its arguments."""
    last = body.last_op
    assert last is not None
    for index, value in enumerate(last.operands):
        is_own = home(value) is body and value.owner is not body
        is_new = value not in last.operands[:index]
        if is_tile(value) and value is not args[index] and not (is_own and is_new):
            last.operands[index] = duplicate(value, last)
    for index, (value, arg) in enumerate(zip(last.operands, args, strict=True)):
        if arg is None or value is arg or not is_tile(value):
            continue
        if not _follows(value, arg, body):
            last.operands[index] = duplicate(value, last)


def _follows(value: SSAValue, arg: BlockArgument, body: Block) -> bool:
    """Whether a value is computed once an argument is no longer needed."""
    op = value.owner
    assert isinstance(op, Operation)
    users = [user_in(body, use) for use in arg.uses]
    return all(
        user.is_before_in_block(op) or (user is op and overwrites(op, arg))
        for user in users
    )


@dataclass(frozen=True)
class TileInsertCopiesPass(ModulePass):
    """Copy tiles where they could not be updated in place."""

    name = "tile-insert-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            copy_overwritten(inner)
            if isinstance(inner, scf.ForOp):
                copy_yielded(inner.body.block, inner.body.block.args[1:])
            elif isinstance(inner, scf.IfOp) and inner.results:
                for region in inner.regions:
                    copy_yielded(region.block, [None] * len(inner.results))
