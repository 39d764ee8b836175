"""What roles may use of the code around them."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, MemRefType, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import is_scalar
from flexc.dialects.tile.schedule.types import BarriersType, SharedType


def verify_captures(region: Region) -> None:
    """Roles use numbers, tensors and shared memory from outside, and no tiles.

    A tile lies in the registers of those who computed it.
    """
    for op in region.walk():
        for operand in op.operands:
            if not _is_shared(operand.type) and not _is_inside(operand, region):
                raise VerifyException(
                    "roles expect numbers, tensors, memrefs, shared memory and "
                    f"barriers from outside, got {operand.type} in {op.name}"
                )


def _is_shared(type_: Attribute) -> bool:
    shared = IndexType | TensorType | MemRefType | SharedType | BarriersType
    return is_scalar(type_) or isinstance(type_, shared)


def _is_inside(value: SSAValue, region: Region) -> bool:
    owner = value.owner
    assert isinstance(owner, Operation | Block)
    return region.is_ancestor(owner)
