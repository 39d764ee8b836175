"""What is measured: one cell is one variant in one size and direction."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from bench.learned import LEARNED
from bench.variants import ANCHORS

VARIANTS = {**ANCHORS, **LEARNED}
"""By name. What learned ones add to the anchors is in their gradients."""

DIRECTIONS = ("fwd", "bwd")
HEAD_DIMS = (128, 64, 256)
SEQS = (8192,)
"""What is asked first comes first."""


class Cell(NamedTuple):
    """A variant, its sizes and the direction."""

    variant: str
    head_dim: int
    seq: int
    direction: str

    def __str__(self) -> str:
        return f"{self.variant} D={self.head_dim} S={self.seq} {self.direction}"


def cells(
    variants: Iterable[str],
    head_dims: Iterable[int],
    seqs: Iterable[int],
    directions: Iterable[str],
) -> list[Cell]:
    """All that are asked for, in the given order: lengths are the outermost loop."""
    found = product(seqs, directions, head_dims, variants)
    return [
        Cell(variant, head_dim, seq, direction)
        for seq, direction, head_dim, variant in found
        if direction == "bwd" or variant in ANCHORS
    ]
