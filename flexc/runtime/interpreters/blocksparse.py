"""Interpreter of the ops with segments: dense ops on the visited pairs.

Segments run for all batches, heads and blocks of rows at once. The interpreter checks
the invariants of a lowering: no pair is visited twice, no block starts before the first
column, and blocks that are declared inside do not extend past the last column.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Region
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import blocksparse
from flexc.runtime.interpreters.attention import (
    DenseProblem,
    Pairs,
    Share,
    attend_splits,
    evaluate_mask,
)
from flexc.runtime.interpreters.pair_sums import SumsProblem, sum_pairs

OverSegments = blocksparse.AttentionOp | blocksparse.PairSumsOp


WHOLE = Share()


@register_impls
class BlockSparseFunctions(InterpreterFunctions):
    """The interpreter of attention, and of sums over pairs, over segments."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(blocksparse.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: blocksparse.AttentionOp, args: PythonValues
    ) -> PythonValues:
        if op.sequence_blocks is not None:
            raise InterpretationError(
                "blocks that begin with sequences have no interpreter; run the kernel"
            )
        problem = DenseProblem.of(op, args)

        def live(share: Share) -> Tensor:
            return visited_pairs(interpreter, op, problem, share=share)

        return attend_splits(interpreter, op, problem, live, self.compute_dtype)

    @impl(blocksparse.PairSumsOp)
    def run_pair_sums(
        self, interpreter: Interpreter, op: blocksparse.PairSumsOp, args: PythonValues
    ) -> PythonValues:
        problem = SumsProblem.of(op, args)
        first = problem.tile_origin[2]
        live = visited_pairs(interpreter, op, problem, op.is_transposed, first)
        return sum_pairs(interpreter, op, problem, live, self.compute_dtype)


def visited_pairs(
    interpreter: Interpreter,
    op: OverSegments,
    problem: Pairs,
    transposed: bool = False,
    first_row: int = 0,
    share: Share = WHOLE,
) -> Tensor:
    """Return the pairs that segments visit and their masks keep.

    Each segment runs one share of its iterations. Raise InterpretationError if a pair
    is visited twice.
    """
    visits = torch.zeros(problem.shape, dtype=torch.int32)
    live = torch.zeros(problem.shape, dtype=torch.bool)
    for segment in op.segments.block.ops:
        assert isinstance(segment, blocksparse.SegmentOp)
        run = SegmentRun(
            interpreter, op, segment, problem, transposed, first_row, share
        )
        visited = run.visits()
        visits = visits + visited
        within = visited > 0
        if segment.mask_mod is not None:
            mask = evaluate_mask(interpreter, segment.mask_mod, problem)
            if segment.partial_if is not None:
                mask = mask | (run.visits(partial=False) > 0)
            within &= mask
        live |= within
    _verify_visited_once(visits)
    return live


def _verify_visited_once(visits: Tensor) -> None:
    if (visits > 1).any():
        b, h, q_idx, kv_idx = (visits > 1).nonzero()[0].tolist()
        raise InterpretationError(
            f"expected each pair to be visited at most once, got "
            f"{visits[b, h, q_idx, kv_idx]} visits of b = {b}, h = {h}, "
            f"q_idx = {q_idx}, kv_idx = {kv_idx}"
        )


class SegmentRun:
    """One segment of one op, run for all blocks of rows."""

    def __init__(
        self,
        interpreter: Interpreter,
        op: OverSegments,
        segment: blocksparse.SegmentOp,
        problem: Pairs,
        transposed: bool = False,
        first_row: int = 0,
        share: Share = WHOLE,
    ):
        """Prepare the run; rows are keys if `transposed`, and start at `first_row`."""
        self.share = share
        self.interpreter = interpreter
        self.segment = segment
        self.problem = problem
        self.transposed = transposed
        self.first_row = first_row
        self.block_m = op.block_m.value.data
        self.block_n = op.block_n.value.data
        batch, heads, *lengths = problem.shape
        self.lengths = lengths[::-1] if transposed else lengths
        self.shape = batch, heads, -(-(self.lengths[0] - first_row) // self.block_m)

    def visits(self, partial: bool | None = None) -> Tensor:
        """Return how often each pair is visited.

        `partial` selects the partial or the full iterations; None selects all.
        """
        row_len, column_len = self.lengths
        columns = self.columns(partial)
        # An extra column receives the columns that do not count.
        counts = torch.zeros((*self.shape, column_len + 1), dtype=torch.int32)
        counts.scatter_add_(-1, columns, torch.ones_like(columns, dtype=torch.int32))
        rows = counts[..., :column_len].repeat_interleave(self.block_m, 2)
        rows = torch.nn.functional.pad(rows, (0, 0, self.first_row, 0))
        visits = rows[:, :, :row_len]
        return visits.transpose(2, 3) if self.transposed else visits

    def columns(self, partial: bool | None) -> Tensor:
        """Return the columns that each block of rows visits.

        Unused entries hold the number of columns.
        """
        column_len = self.lengths[1]
        begin, end = self.share.of(*self.run(self.segment.bounds, 3))
        count = int((end - begin).clamp(min=0).max()) if begin.numel() else 0
        i = begin[..., None] + torch.arange(count, dtype=torch.int32)
        used = (i < end[..., None])[..., None]
        if partial is not None:
            assert self.segment.partial_if is not None
            (choice,) = self.run(self.segment.partial_if, 4, i)
            used = used & (choice.to(torch.bool) == partial)[..., None]
        start, *counts = self.run(self.segment.block, 4, i)
        columns = start.to(torch.int64)[..., None] + torch.arange(self.block_n)
        for visited in counts:
            self.verify_counts(used, start, visited)
            used = used & (torch.arange(self.block_n) < visited[..., None])
        self.verify(used, columns)
        columns = torch.where(used & (columns < column_len), columns, column_len)
        return columns.flatten(-2)

    def run(self, region: Region, rank: int, *i: Tensor) -> Sequence[Tensor]:
        """Run `bounds`, or a region for iterations `i`, for all blocks of rows."""
        batch, heads, blocks = self.shape
        problem = self.problem
        start = problem.index(blocks, 2, rank) * self.block_m + self.first_row
        place = (problem.index(batch, 0, rank), problem.index(heads, 1, rank), start)
        lengths = (torch.tensor(n, dtype=torch.int32) for n in self.lengths)
        args = (*place, *i, *lengths, *problem.captures, *problem.tables)
        results = self.interpreter.run_ssacfg_region(region, args, "segment")
        shape = (*self.shape, *(n.shape[-1] for n in i))
        return [r.expand(shape) for r in results]

    def verify_counts(self, used: Tensor, start: Tensor, counts: Tensor) -> None:
        """Raise InterpretationError if an iteration of a trimmed segment is invalid.

        Each iteration must have 1 to `block_n` columns, or 0 if the segment may skip.
        The first column must exist.
        """
        used, skips = used[..., 0], self.segment.may_skip is not None
        wrong = used & ((counts > self.block_n) | (counts < 1) & (not skips))
        if wrong.any():
            raise InterpretationError(
                f"expected 1 to {self.block_n} columns, got {counts[wrong][0]}"
            )
        if (used & ((start < 0) | (start >= self.lengths[1]))).any():
            raise InterpretationError(
                f"expected a first column among {self.lengths[1]}, got none"
            )

    def verify(self, used: Tensor, columns: Tensor) -> None:
        if (used & (columns < 0)).any():
            raise InterpretationError(
                "expected no column before 0, got a block of them"
            )
        length = self.lengths[1]
        if self.segment.inside is not None and (used & (columns >= length)).any():
            raise InterpretationError(
                f"expected all blocks inside {length} columns, got one that sticks out"
            )
