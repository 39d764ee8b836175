"""Where in program order a tile is waited for, and where its slot is given back."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from flexc.dialects import tile
from flexc.dialects.tile.schedule import PartsOp
from flexc.passes.hopper.specialize_warps.loads import uses_through_transposes

StagedOp = tile.LoadOp | tile.TransposeOp


def move_to_products(parts: PartsOp, staged: Sequence[tile.LoadOp]) -> None:
    """Move loads and their transposes to right before the first product that uses them.

    A consumer waits there. Whoever waits earlier than it must may wait for what cannot
    come before it has gone on; and producers copy in the order of these places.
    """
    loads = set(staged)
    for op in [o for o in parts.body.walk() if isinstance(o, StagedOp)]:
        if isinstance(op, tile.TransposeOp) or op in loads:
            _move_to_first_use(op)


def _move_to_first_use(op: StagedOp) -> None:
    if not (users := _users_in_block(op)):
        return
    block = op.parent_block()
    assert block is not None
    op.detach()
    block.insert_op_before(op, users[0])


def released_after(
    staged: Sequence[tile.LoadOp],
) -> dict[Operation, list[tile.LoadOp]]:
    """The loads whose tiles nobody reads after an op, which is in the load's block."""
    found: dict[Operation, list[tile.LoadOp]] = {}
    for load in staged:
        found.setdefault(_users_in_block(load)[-1], []).append(load)
    return found


def _users_in_block(op: StagedOp) -> list[Operation]:
    """The products that use a tile, or what of its block they are in, in order."""
    block = op.parent_block()
    assert block is not None
    found = {block.find_ancestor_op_in_block(o) for o in users_of(op)}
    return [o for o in block.ops if o in found]


def users_of(op: StagedOp) -> list[Operation]:
    """What uses a tile or a transpose of it."""
    return [use.operation for use in uses_through_transposes(op.results[0])]
