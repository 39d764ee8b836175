"""What a program knows of one block of columns that it visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from flexc.dialects.blocksparse import SegmentKind, SegmentOp
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region


@dataclass(frozen=True)
class Visit:
    """One block of columns of a segment."""

    segment: SegmentOp
    start: SSAValue
    """Its first column."""
    masked: SSAValue | None = None
    """Whether the mask decides of it, in a mixed segment."""
    exists: SSAValue | None = None
    """Whether it is more than what is visited in place of nothing, where there may be
    nothing: in padded segments, and in those that may skip."""
    count: SSAValue | None = None
    """How many columns of the block are visited, the first ones, if not all."""

    @property
    def sticks_out(self) -> bool:
        """Whether columns may lie beyond the last."""
        return self.segment.inside is None

    @property
    def flags(self) -> list[SSAValue]:
        """What decides of pairs, besides the pair: operands of a map over the block."""
        return [v for v in (self._unmasked, self.exists) if v is not None]

    @property
    def _unmasked(self) -> SSAValue | None:
        """`masked`, where the mask may be asked of blocks that it says nothing of."""
        has_mask = self.segment.mask_mod is not None
        return self.masked if has_mask and self._full_sticks_out else None

    @property
    def _full_sticks_out(self) -> bool:
        """Whether columns may lie beyond the last though the block is not masked."""
        return self.sticks_out and self.segment.full_inside is None

    def doubtful(
        self, code: ScalarCode, block_n: int, column_len: SSAValue
    ) -> SSAValue | None:
        """Whether pairs may be dead; None if blocks do not differ in that.

        Full segments that need not be entered have few blocks, or others beside them:
        there a branch does not pay for the sake of the columns beyond the last. Nor
        does it for the few iterations of trimmed segments that are skipped.
        """
        if self.segment.kind.data == SegmentKind.PARTIAL or self.segment.is_trimmed:
            return None
        found = [] if self.masked is None else [self.masked]
        if self._full_sticks_out and (found or self.segment.is_entered):
            end = code.add(self.start, code.const(block_n))
            found.append(code.cmp("sgt", end, column_len))
        if self.exists is not None:
            found.append(_not(code, self.exists))
        return _any(code, found)

    def live(
        self,
        code: ScalarCode,
        inside: SSAValue | None,
        mod_args: Sequence[SSAValue],
        flags: Sequence[SSAValue],
    ) -> SSAValue | None:
        """Whether a pair counts; None if every pair does.

        `flags` are the block's own, as arguments of the map around.
        """
        given = list(flags)
        found: list[SSAValue] = []
        if self.segment.mask_mod is not None:
            (live,) = inline_region(self.segment.mask_mod, mod_args, code)
            if self._unmasked is not None:
                live = code.or_(live, _not(code, given.pop(0)))
            found.append(live)
        # Of columns alone, and so computed once for each.
        exists = _all(code, [*([] if inside is None else [inside]), *given])
        return _all(code, [*found, *([] if exists is None else [exists])])


def _not(code: ScalarCode, flag: SSAValue) -> SSAValue:
    return code.insert(arith.XOrIOp(flag, code.const(1, i1)))


def _any(code: ScalarCode, flags: Sequence[SSAValue]) -> SSAValue | None:
    if not flags:
        return None
    result, *rest = flags
    for flag in rest:
        result = code.or_(result, flag)
    return result


def _all(code: ScalarCode, flags: Sequence[SSAValue]) -> SSAValue | None:
    if not flags:
        return None
    result, *rest = flags
    for flag in rest:
        result = code.and_(result, flag)
    return result
