"""Effects of ops whose operands may lie in shared memory."""

from __future__ import annotations

from xdsl.ir import Operation
from xdsl.traits import (
    ConditionallySpeculatable,
    EffectInstance,
    MemoryEffect,
    MemoryEffectKind,
)

from flexc.dialects.tile.schedule.types import ViewType


class ReadsViews(MemoryEffect, ConditionallySpeculatable):
    """Pure on tiles; reads memory, at a time that matters, where an operand is a view.

    A view's op is neither moved nor merged across waits.
    """

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        """A read, if there is a view."""
        if _has_view(op):
            return {EffectInstance(MemoryEffectKind.READ)}
        return set()

    @classmethod
    def is_speculatable(cls, op: Operation) -> bool:
        """Whether the op may run where it did not."""
        return not _has_view(op)


def _has_view(op: Operation) -> bool:
    return any(isinstance(type_, ViewType) for type_ in op.operand_types)
