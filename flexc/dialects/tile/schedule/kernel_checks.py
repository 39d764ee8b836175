"""What a schedule has to keep to in the kernel as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, Region
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.tile.schedule.barriers import BarriersOp
from flexc.dialects.tile.schedule.capacity import (
    SHARED_BYTES,
    WARP_GROUP,
    shared_bytes,
    verify_residents,
    verify_starting_registers,
)
from flexc.dialects.tile.schedule.memory import SharedOp
from flexc.dialects.tile.schedule.products import ROWS, IssueDotOp
from flexc.dialects.tile.schedule.roles import RolesOp
from flexc.dialects.tile.schedule.signals import role_of, verify_signals
from flexc.dialects.tile.schedule.types import PendingType


def verify_schedule(body: Region, attributes: Mapping[str, Attribute]) -> None:
    """The body of a kernel: one set of roles, barriers that agree, room for all."""
    own = set(body.block.ops)
    roles: list[RolesOp] = []
    for op in body.walk():
        if isinstance(op, RolesOp | SharedOp | BarriersOp) and op not in own:
            raise VerifyException(f"{op.name} expects the kernel's own block")
        if isinstance(op, RolesOp):
            roles.append(op)
        if isinstance(op, BarriersOp):
            verify_signals(op)
        if isinstance(op, IssueDotOp):
            _verify_warps(op)
    if len(roles) > 1:
        raise VerifyException(f"expects one tile.roles at most, got {len(roles)}")
    if (total := shared_bytes(body)) > SHARED_BYTES:
        raise VerifyException(
            f"expects at most {SHARED_BYTES} bytes of shared memory, got {total}"
        )
    for op in roles:
        _verify_shares(op, total, attributes)


def _verify_shares(
    op: RolesOp, shared: int, attributes: Mapping[str, Attribute]
) -> None:
    """What a kernel's attributes promise of registers and of programs beside it."""
    groups = [role.group for role in op.roles]
    registers = sum(group.threads * group.registers for group in groups)
    if (most := _number(attributes, "max_registers")) is not None:
        verify_starting_registers(groups, most)
        registers = sum(group.threads for group in groups) * most
    residents = _number(attributes, "residents")
    verify_residents(1 if residents is None else residents, registers, shared)


def _number(attributes: Mapping[str, Attribute], name: str) -> int | None:
    attribute = attributes.get(name)
    if attribute is None:
        return None
    if not isa(attribute, IntegerAttr):
        raise VerifyException(f"{name} expects an integer, got {attribute}")
    return attribute.value.data


def _verify_warps(issue: IssueDotOp) -> None:
    role = role_of(issue)
    if role is not None and role.group.warps % WARP_GROUP:
        raise VerifyException(
            f"role {role.label} expects a multiple of 4 warps, as it issues "
            f"products, got {role.group.warps}"
        )
    assert isinstance(issue.result.type, PendingType)
    tile = issue.result.type.tile
    if role is not None and tile.get_layout() is not None:
        rows = ROWS * role.group.warps // WARP_GROUP
        if tile.get_shape()[0] % rows:
            raise VerifyException(
                f"role {role.label} expects products of a multiple of {rows} rows, "
                f"got {tile}"
            )
