"""Ops of an explicit schedule: roles, asynchronous ops, and operands in shared memory.

Passes write a schedule (`tile-split-rows`, `tile-delay-products`,
`tile-specialize-warps`, `tile-async-products`, `tile-take-turns`), and the Gluon
printer prints it.
"""

from __future__ import annotations

from flexc.dialects.tile.schedule.memory import (
    ArriveOp,
    AwaitCopiesOp,
    AwaitOp,
    BarriersOp,
    CopyInOp,
    CopyOutOp,
    ExpectOp,
    FenceCopiesOp,
    OpaqueOp,
    ReadViewOp,
    SharedOp,
    SlotOp,
    TakeColumnsOp,
    TransposeViewOp,
    WriteViewOp,
    shared_bytes,
)
from flexc.dialects.tile.schedule.products import AwaitDotOp, IssueDotOp
from flexc.dialects.tile.schedule.roles import (
    EndOp,
    OfPartOp,
    PartsOp,
    PassTurnOp,
    RoleOp,
    RolesOp,
    ShareOp,
    TakeTurnOp,
    TurnOp,
)
from flexc.dialects.tile.types import (
    BarriersType,
    PendingType,
    SharedType,
    SharesType,
    ViewType,
    tile_bytes,
    tile_of,
)

SCHEDULE_OPS = (
    PartsOp,
    ShareOp,
    OfPartOp,
    TakeColumnsOp,
    RolesOp,
    RoleOp,
    TakeTurnOp,
    PassTurnOp,
    EndOp,
    SharedOp,
    OpaqueOp,
    SlotOp,
    TransposeViewOp,
    CopyInOp,
    WriteViewOp,
    ReadViewOp,
    FenceCopiesOp,
    CopyOutOp,
    AwaitCopiesOp,
    BarriersOp,
    ExpectOp,
    ArriveOp,
    AwaitOp,
    IssueDotOp,
    AwaitDotOp,
)

SCHEDULE_TYPES = (SharedType, SharesType, ViewType, BarriersType, PendingType)

__all__ = [
    "SCHEDULE_OPS",
    "SCHEDULE_TYPES",
    "ArriveOp",
    "AwaitCopiesOp",
    "AwaitDotOp",
    "AwaitOp",
    "BarriersOp",
    "BarriersType",
    "CopyInOp",
    "CopyOutOp",
    "EndOp",
    "ExpectOp",
    "FenceCopiesOp",
    "IssueDotOp",
    "OfPartOp",
    "OpaqueOp",
    "PartsOp",
    "PassTurnOp",
    "PendingType",
    "ReadViewOp",
    "RoleOp",
    "RolesOp",
    "ShareOp",
    "SharedOp",
    "SharedType",
    "SharesType",
    "SlotOp",
    "TakeColumnsOp",
    "TakeTurnOp",
    "TransposeViewOp",
    "TurnOp",
    "ViewType",
    "WriteViewOp",
    "shared_bytes",
    "tile_bytes",
    "tile_of",
]
