"""The meaning of `blocksparse.attention`: dense attention on the visited pairs.

Segments are run for all batches, heads and blocks of rows at once. What a
lowering promises is checked on the way: no pair is visited twice, no block
starts before the first key, none sticks out that is said to be inside.
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
from flexc.runtime.interpreters.dense import Problem, attend, evaluate_mask


@register_impls
class BlockSparseFunctions(InterpreterFunctions):
    """Attention over the union of the segments."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(blocksparse.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: blocksparse.AttentionOp, args: PythonValues
    ) -> PythonValues:
        problem = Problem.of(op, args)
        visits = torch.zeros(problem.shape, dtype=torch.int32)
        live = torch.zeros(problem.shape, dtype=torch.bool)
        for segment in op.segments.block.ops:
            assert isinstance(segment, blocksparse.SegmentOp)
            run = SegmentRun(interpreter, op, segment, problem)
            visited = run.visits()
            visits = visits + visited
            within = visited > 0
            if segment.mask_mod is not None:
                mask = evaluate_mask(interpreter, segment.mask_mod, problem)
                if segment.masked_if is not None:
                    mask = mask | (run.visits(masked=False) > 0)
                within &= mask
            live |= within
        _verify_visited_once(visits)
        return attend(interpreter, op, problem, live, self.compute_dtype)


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
        op: blocksparse.AttentionOp,
        segment: blocksparse.SegmentOp,
        problem: Problem,
    ):
        self.interpreter = interpreter
        self.segment = segment
        self.problem = problem
        self.block_m = op.block_m.value.data
        self.block_n = op.block_n.value.data
        self.shape = (*problem.shape[:2], -(-problem.shape[2] // self.block_m))

    def visits(self, masked: bool | None = None) -> Tensor:
        """How often each pair is visited, by blocks that are masked or not."""
        _, _, q_len, kv_len = self.problem.shape
        columns = self.columns(masked)
        # One key more than there are takes the columns that do not count.
        counts = torch.zeros((*self.shape, kv_len + 1), dtype=torch.int32)
        counts.scatter_add_(-1, columns, torch.ones_like(columns, dtype=torch.int32))
        rows = counts[..., :kv_len].repeat_interleave(self.block_m, 2)
        return rows[:, :, :q_len]

    def columns(self, masked: bool | None) -> Tensor:
        """The keys that each block of rows visits, kv_len for none."""
        kv_len = self.problem.shape[3]
        begin, end = self.run(self.segment.bounds, 3)
        count = int((end - begin).clamp(min=0).max()) if begin.numel() else 0
        i = begin[..., None] + torch.arange(count, dtype=torch.int32)
        used = (i < end[..., None])[..., None]
        if masked is not None:
            assert self.segment.masked_if is not None
            (choice,) = self.run(self.segment.masked_if, 4, i)
            used = used & (choice.to(torch.bool) == masked)[..., None]
        (start,) = self.run(self.segment.block, 4, i)
        columns = start.to(torch.int64)[..., None] + torch.arange(self.block_n)
        self.verify(used, columns)
        columns = torch.where(used & (columns < kv_len), columns, kv_len)
        return columns.flatten(-2)

    def run(self, region: Region, rank: int, *i: Tensor) -> Sequence[Tensor]:
        """Run `bounds`, or `block` for iterations `i`, for all blocks of rows."""
        batch, heads, blocks = self.shape
        problem = self.problem
        q_start = problem.index(blocks, 2, rank) * self.block_m
        place = (problem.index(batch, 0, rank), problem.index(heads, 1, rank), q_start)
        lengths = (torch.tensor(n, dtype=torch.int32) for n in problem.shape[2:])
        args = (*place, *i, *lengths, *problem.captures, *problem.tables)
        results = self.interpreter.run_ssacfg_region(region, args, "segment")
        shape = (*self.shape, *(n.shape[-1] for n in i))
        return [r.expand(shape) for r in results]

    def verify(self, used: Tensor, columns: Tensor) -> None:
        if (used & (columns < 0)).any():
            raise InterpretationError("expected no key before 0, got a block of them")
        kv_len = self.problem.shape[3]
        if self.segment.inside is not None and (used & (columns >= kv_len)).any():
            raise InterpretationError(
                f"expected all blocks inside {kv_len} keys, got one that sticks out"
            )
