"""Which blocks segments visit, by running their code, and which hold live pairs.

Rows are queries and columns keys, or, of transposed segments, the other way around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask
from xdsl.ir import Region

from flexc.dialects.blocksparse import SegmentOp
from flexc.runtime.interpreters import run_region

HEADS = 2
DEAD, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True)
class Sizes:
    """Lengths, and the blocks of rows and columns that they are cut into."""

    q_len: int
    kv_len: int
    block_m: int
    block_n: int
    transposed: bool = False
    batches: int = 1
    heads: int = HEADS

    @property
    def lengths(self) -> tuple[int, int]:
        """Rows and columns."""
        row, column = self.q_len, self.kv_len
        return (column, row) if self.transposed else (row, column)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batches, heads, and blocks of rows and columns."""
        rows, columns = self.lengths
        blocks = -(-rows // self.block_m), -(-columns // self.block_n)
        return self.batches, self.heads, *blocks


def sizes(transposed: bool = False) -> st.SearchStrategy[Sizes]:
    return st.builds(
        Sizes,
        st.integers(1, 200),
        st.integers(1, 200),
        st.sampled_from([1, 7, 16, 64]),
        st.sampled_from([8, 16, 64]),
        st.just(transposed),
    )


class Visits:
    """The segments of a mask, run for all blocks of rows.

    `given` are the arguments for its captures and then for its tables.
    """

    def __init__(
        self, segments: Sequence[SegmentOp], given: list[Any], s: Sizes, step: int = 1
    ):
        """`step` is how many columns an iteration of a trimmed segment may visit."""
        self.segments, self.given, self.sizes = segments, given, s
        self.step = step

    def run(self, region: Region, *i: Tensor) -> list[Tensor]:
        """Run bounds, or, of the iterations i, what says their blocks."""
        batches, heads, rows, _ = self.sizes.shape
        b = torch.arange(batches, dtype=torch.int32)[:, None, None, None]
        h = torch.arange(heads, dtype=torch.int32)[:, None, None]
        start = torch.arange(rows, dtype=torch.int32)[:, None] * self.sizes.block_m
        args = [b, h, start, *i, *self.sizes.lengths, *self.given]
        shape = (batches, heads, rows, i[0].shape[-1] if i else 1)
        return [x.expand(shape) for x in run_region(region, args)]

    def of(self, segment: SegmentOp, partial_if: Region | None = None) -> Tensor:
        """How often a segment visits each block, or each for which a test is true."""
        s, (_, length) = self.sizes, self.sizes.lengths
        columns = s.shape[3]
        begin, end = self.run(segment.bounds)
        count = int((end - begin).max().clamp(min=0))
        i = begin + torch.arange(count, dtype=torch.int32)
        start, *counts = self.run(segment.block, i)
        used = i < end
        assert (~used | (start >= 0) & (start < length)).all()
        if partial_if is not None:
            used = used & self.run(partial_if, i)[0]
        if counts:
            start, used = self.some_columns(segment, start, counts[0], used)
        assert not start[used].remainder(s.block_n).any()
        assert segment.inside is None or (start + s.block_n <= length)[used].all()
        column = torch.where(used, start // s.block_n, columns).to(torch.int64)
        marks = torch.zeros((*s.shape[:3], columns + 1), dtype=torch.int64)
        marks.scatter_add_(-1, column, used.to(torch.int64))
        return marks[..., :columns]

    def some_columns(
        self, segment: SegmentOp, start: Tensor, count: Tensor, used: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The columns of the iterations of a trimmed segment; blocks are of one."""
        assert self.sizes.block_n == 1
        assert (~used | (count <= self.step)).all()
        assert segment.may_skip is not None or (~used | (count > 0)).all()
        within = torch.arange(self.step, dtype=torch.int32)
        columns = start[..., None] + within
        return columns.flatten(-2), (
            used[..., None] & (within < count[..., None])
        ).flatten(-2)

    def classes(self) -> Tensor:
        """The class of every block; none is visited twice."""
        classes = torch.zeros(self.sizes.shape, dtype=torch.int64)
        for segment in self.segments:
            marks = self.of(segment)
            assert marks.max() <= 1
            assert not (marks.bool() & classes.bool()).any()
            if segment.partial_if is None:
                classes += marks * (FULL if segment.is_full else PARTIAL)
            else:
                classes += marks * FULL - self.of(segment, segment.partial_if)
        return classes

    def check_one_loop(self, classes: Tensor) -> None:
        """Blocks are those of other segments, and in order within a mixed one."""
        assert torch.equal(self.classes(), classes)
        for segment in self.segments:
            is_in_order = segment.partial_if is not None
            assert not is_in_order or len(self.segments) == 1


def check_rising(classes: Tensor) -> None:
    """Neither the first nor the last visited block falls from row to row."""
    visited = classes != DEAD
    some, count = visited.any(-1), visited.shape[-1]
    first = visited.int().argmax(-1)
    last = count - 1 - visited.flip(-1).int().argmax(-1)
    for end in (first, last):
        before = torch.where(some, end, -1).cummax(-1).values
        assert (end >= before)[some].all()


def live_pairs(mask: Callable[..., Any], s: Sizes) -> Tensor:
    """Whether each pair of a row and a column is live, by the mask itself."""
    live = create_mask(mask, s.batches, s.heads, s.q_len, s.kv_len, device="cpu")
    return live.transpose(-1, -2) if s.transposed else live


def brute_force(mask: Callable[..., Any], s: Sizes) -> Tensor:
    """The class of every block, from all its pairs; blocks that stick out over the
    last column are never full, those over the last row may be."""
    lead, (_, _, rows, columns) = (s.batches, s.heads), s.shape
    row_len, column_len = s.lengths
    some = torch.zeros((*lead, rows * s.block_m, columns * s.block_n)).bool()
    some[..., :row_len, :column_len] = live_pairs(mask, s)
    every = some.clone()
    every[..., row_len:, :] = True
    blocked = (*lead, rows, s.block_m, columns, s.block_n)
    is_live = some.view(blocked).any(5).any(3)
    is_full = is_live & every.view(blocked).all(5).all(3)
    return is_live.to(torch.int64) + is_full


def verify(found: Tensor, exact: Tensor) -> None:
    """Classes may be worse than they need be, and never better."""
    assert not ((found == DEAD) & (exact != DEAD)).any(), "a skipped block is live"
    assert not ((found == FULL) & (exact != FULL)).any(), "a full block has a dead pair"
