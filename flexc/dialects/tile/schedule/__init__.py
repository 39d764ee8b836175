"""Ops of an explicit schedule: roles, asynchronous ops, and operands in shared memory.

Passes write a schedule (`tile-split-rows`, `tile-delay-products`,
`tile-specialize-warps`, `tile-async-products`), and the Gluon printer prints it.
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
    SharedOp,
    SlotOp,
    TransposeViewOp,
    WriteViewOp,
    shared_bytes,
)
from flexc.dialects.tile.schedule.products import AwaitDotOp, IssueDotOp
from flexc.dialects.tile.schedule.roles import (
    EndOp,
    PartsOp,
    RoleOp,
    RolesOp,
)
from flexc.dialects.tile.types import (
    BarriersType,
    PendingType,
    SharedType,
    ViewType,
    tile_bytes,
    tile_of,
)

SCHEDULE_OPS = (
    PartsOp,
    RolesOp,
    RoleOp,
    EndOp,
    SharedOp,
    SlotOp,
    TransposeViewOp,
    CopyInOp,
    WriteViewOp,
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

SCHEDULE_TYPES = (SharedType, ViewType, BarriersType, PendingType)

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
    "PartsOp",
    "PendingType",
    "RoleOp",
    "RolesOp",
    "SharedOp",
    "SharedType",
    "SlotOp",
    "TransposeViewOp",
    "ViewType",
    "WriteViewOp",
    "shared_bytes",
    "tile_bytes",
    "tile_of",
]
