"""The layout of all tables of a mask in one allocation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flexc.passes.flex.planning.tables import ALIGNMENT, KINDS, LINES

Table = tuple[Tensor, Tensor]
"""The number of blocks of each row, and the indices of these blocks."""


class TablesLayout:
    """The layout of all tables for classes of a shape, in one allocation.

    `list_blocks` and `order` compute the same places.
    """

    def __init__(self, shape: tuple[int, ...], both: bool):
        b, h, rows, columns = shape
        lines = [(rows, columns), (columns, rows)] if both else [(rows, columns)]
        self.places: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        """The shape, strides and offset of each table."""
        self.size = 0
        self.programs = sum(-(-n // LINES) for n, _ in lines)
        """The number of programs that fill the tables of a batch and head."""
        for n, entries in lines:
            for _ in KINDS:
                self._add((b, h, n), (h * n, n, 1))
                self._add(
                    (b, h, n, entries), (h * n * entries, n * entries, entries, 1)
                )

    def _add(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.places.append((shape, strides, self.size))
        self.size += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT

    def empty(self, device: torch.device) -> Tensor:
        """Return uninitialized memory for all tables."""
        return torch.empty(self.size, dtype=torch.int32, device=device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        return [buffer.as_strided(*place) for place in self.places]
