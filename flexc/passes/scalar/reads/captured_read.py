"""What is known of a read of a captured tensor: how its index varies.

The gradient of a captured tensor sums the adjoints of its reads over all pairs of
positions that read the same element. What an index does not vary with is summed over
where the adjoints are made, which leaves one number for each head, row, column or
distance. What is left is added in where the index says, one *part* of the index
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from xdsl.ir import Region

from flexc.passes.scalar.dependence import PAIR, Along


class IndexClass(Enum):
    """Along what the index of a read varies, b and h aside."""

    HEAD = "head"
    """Nothing else: the same element for all pairs of a head."""
    ROW = "row"
    COLUMN = "column"
    DIAGONAL = "diagonal"
    """Rows and columns, but only through `q_idx - kv_idx`."""
    PAIR = "pair"
    SCORE = "score"
    """The score: no sum can be taken before the score is known."""


@dataclass(frozen=True, eq=False)
class Line:
    """An index that is `step * position + offset`, or `offset` alone if step is 0.

    The position is the only one that the index varies along; `q_idx - kv_idx` where it
    varies along the diagonal. The index may have wrapped around in its type's `width`.
    """

    step: int
    """1, -1 or 0."""
    wraps: bool
    """Negative ones count from the end."""
    width: int
    start: Region
    """Of b, h, q_idx, kv_idx and captures: the index, not yet counted from the end. It
    reads no tensor but for its size."""


@dataclass(frozen=True, eq=False)
class Part:
    """Indices of a read that share no position with its other indices."""

    dims: tuple[int, ...]
    """The dimensions of the tensor that they are indices of."""
    along: Along
    """What any of them varies with."""
    indices: Region
    """Yields them, for b, h, q_idx, kv_idx and captures."""
    line: Line | None


@dataclass(frozen=True, eq=False)
class CapturedRead:
    """One read of a captured tensor."""

    capture: int
    """Which of the captures."""
    index_class: IndexClass
    parts: tuple[Part, ...]
    why: str
    """For class PAIR, what keeps it from being of another one."""

    @property
    def injective(self) -> bool:
        """Whether each index is a position of its own, give or take an offset.

        Elements are then read along a slice of the tensor.
        """
        return all(part.line is not None for part in self.parts)

    @property
    def by_pair(self) -> bool:
        """Whether each pair has a place of its own, which no slice or product gives.

        These sums are the only ones that a GPU may add in any order.
        """
        parts = (part for part in self.parts if part.line is None)
        is_pair = self.index_class is IndexClass.PAIR
        return is_pair and any(part.along & PAIR == PAIR for part in parts)
