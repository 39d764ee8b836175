"""What a schedule has to keep to in the kernel as a whole."""

from __future__ import annotations

from xdsl.ir import Region
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.schedule.barriers import BarriersOp
from flexc.dialects.tile.schedule.capacity import SHARED_BYTES, shared_bytes
from flexc.dialects.tile.schedule.memory import SharedOp
from flexc.dialects.tile.schedule.products import IssueDotOp
from flexc.dialects.tile.schedule.roles import RolesOp
from flexc.dialects.tile.schedule.signals import role_of, verify_signals


def verify_schedule(body: Region) -> None:
    """The body of a kernel: one set of roles, barriers that agree, room for all."""
    own = set(body.block.ops)
    roles = 0
    for op in body.walk():
        if isinstance(op, RolesOp | SharedOp | BarriersOp) and op not in own:
            raise VerifyException(f"{op.name} expects the kernel's own block")
        roles += isinstance(op, RolesOp)
        if isinstance(op, BarriersOp):
            verify_signals(op)
        if isinstance(op, IssueDotOp):
            _verify_warps(op)
    if roles > 1:
        raise VerifyException(f"expects one tile.roles at most, got {roles}")
    if (total := shared_bytes(body)) > SHARED_BYTES:
        raise VerifyException(
            f"expects at most {SHARED_BYTES} bytes of shared memory, got {total}"
        )


def _verify_warps(issue: IssueDotOp) -> None:
    role = role_of(issue)
    if role is not None and role.group.warps % 4:
        raise VerifyException(
            f"role {role.label} expects a multiple of 4 warps, as it issues "
            f"products, got {role.group.warps}"
        )
