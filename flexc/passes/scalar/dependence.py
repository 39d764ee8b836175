"""What the values of a mod region vary along."""

from __future__ import annotations

from enum import Flag, auto

from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS


class Along(Flag):
    """The arguments of a mod that a value depends on."""

    SCORE = auto()
    BATCH = auto()
    HEAD = auto()
    ROW = auto()
    """q_idx."""
    COLUMN = auto()
    """kv_idx."""


NOTHING = Along(0)
PAIR = Along.ROW | Along.COLUMN


class Dependences:
    """What each value of a region depends on, found when asked for.

    `mods` are regions whose first arguments are (score), b, h, q_idx, kv_idx;
    captures and sizes depend on nothing.
    """

    def __init__(self, region: Region, has_score: bool = False):
        names = [Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN]
        if has_score:
            names = [Along.SCORE, *names]
        self._known: dict[SSAValue, Along] = dict(
            zip(region.block.args, names, strict=False)
        )

    def __getitem__(self, value: SSAValue) -> Along:
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._compute(value)
        return found

    def _compute(self, value: SSAValue) -> Along:
        if isinstance(value.owner, Block):
            return NOTHING
        along = NOTHING
        for operand in value.owner.operands:
            along |= self[operand]
        return along

    def is_uniform(self, value: SSAValue) -> bool:
        """Whether a value is one number for all pairs of a head."""
        return not self[value] & (PAIR | Along.SCORE)


def indices(region: Region) -> list[SSAValue]:
    """b, h, q_idx and kv_idx of a mask region."""
    return list(region.block.args[: len(INDEX_ARGS)])


def yielded(region: Region) -> SSAValue:
    """The only value that a region yields."""
    last = region.block.last_op
    assert isinstance(last, flex.YieldOp)
    return last.values[0]
