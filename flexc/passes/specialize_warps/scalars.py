"""What is computed before roles part, and only one of them uses, moves into it."""

from __future__ import annotations

from xdsl.ir import Operation

from flexc.dialects import tile
from flexc.dialects.tile.schedule import BarriersOp, RoleOp, RolesOp, SharedOp
from flexc.passes.specialize_warps.consumer import writes_memory


def sink_into_roles(roles: RolesOp) -> None:
    """Move ops before `roles` into the one role that uses their results.

    From the last to the first, so that what an op needs can follow it.
    """
    op = roles.prev_op
    while op is not None:
        before = op.prev_op
        if (role := only_user(op, roles)) is not None and is_movable(op):
            op.detach()
            first = role.body.block.first_op
            assert first is not None
            role.body.block.insert_op_before(op, first)
        op = before


def only_user(op: Operation, roles: RolesOp) -> RoleOp | None:
    """The role that all uses of an op's results are in, if it is one."""
    users = {
        roles.body.block.find_ancestor_op_in_block(u.operation)
        for result in op.results
        for u in result.uses
    }
    user = next(iter(users), None)
    return user if len(users) == 1 and isinstance(user, RoleOp) else None


def is_movable(op: Operation) -> bool:
    """Whether an op only computes its results, from values and inputs.

    Not told by traits: some of `arith` lack them.
    """
    if isinstance(op, SharedOp | BarriersOp | tile.ProgramIdOp):
        return False
    return not any(writes_memory(inner) for inner in op.walk())
