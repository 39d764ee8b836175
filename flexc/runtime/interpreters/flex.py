"""The meaning of `flex.attention`, straight from its description."""

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

from flexc.dialects import flex
from flexc.runtime.interpreters.dense import (
    Pairs,
    Problem,
    Share,
    attend_splits,
    evaluate_mask,
)
from flexc.runtime.interpreters.values import dense_array, dtype_of


@register_impls
class FlexFunctions(InterpreterFunctions):
    """Dense attention under a mask."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(flex.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: flex.AttentionOp, args: PythonValues
    ) -> PythonValues:
        problem = Problem.of(op, args)
        pairs = live_pairs(interpreter, op, problem)

        def live(share: Share) -> Tensor:
            # A lowering may share keys out in another way.
            kv_idx = problem.indices[3]
            ends = (torch.tensor(n, dtype=kv_idx.dtype) for n in (0, problem.shape[3]))
            first, end = share.of(*ends)
            return pairs & (kv_idx >= first) & (kv_idx < end)

        return attend_splits(interpreter, op, problem, live, self.compute_dtype)

    @impl(flex.CombineSplitsOp)
    def run_combine_splits(
        self, interpreter: Interpreter, op: flex.CombineSplitsOp, args: PythonValues
    ) -> PythonValues:
        outs, row_shift, log_sum, splits = args
        outs, row_shift, log_sum = (
            t.to(self.compute_dtype or t.dtype).unflatten(0, (-1, int(splits)))
            for t in (outs, row_shift, log_sum)
        )
        # A split without pairs has any shift, and -inf for the logarithm.
        lse = row_shift + log_sum
        total = lse.logsumexp(1)
        largest = torch.where(log_sum == -torch.inf, -torch.inf, row_shift).amax(1)
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        weights = (row_shift - largest[:, None] + log_sum).exp()[..., None]
        sums = torch.where(weights == 0, 0.0, weights * outs).sum(1)
        whole = weights.sum(1)
        out = sums / torch.where(whole == 0, 1.0, whole)
        types = (op.out.type, op.lse.type)
        return tuple(
            result.to(dtype_of(type_.element_type))
            for result, type_ in zip((out, total), types, strict=True)
        )


def live_pairs(
    interpreter: Interpreter,
    op: flex.WithMods | flex.PairSumsOp,
    problem: Pairs,
    transposed: bool = False,
) -> Tensor:
    """Where mask and tables let a pair count; broadcasts to all scores.

    The tables of a transposed op list blocks of queries for blocks of keys.
    """
    live = evaluate_mask(interpreter, op.mask_mod, problem)
    if op.sparse_block is not None:
        size = dense_array(op.sparse_block)
        pairs = listed(problem, problem.tables[:2], size, transposed)
        live = live & pairs
        if len(problem.tables) == 4:
            live = live | listed(problem, problem.tables[2:], size, transposed)
    return live


def listed(
    problem: Pairs, tables: Sequence[Tensor], size: tuple[int, ...], transposed: bool
) -> Tensor:
    """Which pairs lie in the blocks that counts and indices list, row by row."""
    counts, columns = tables
    row_len, column_len = problem.shape[:1:-1] if transposed else problem.shape[2:]
    # One column more than there are blocks takes the entries that do not count.
    none = max(-(-column_len // size[1]), columns.shape[-1])
    position = torch.arange(columns.shape[-1], device=columns.device)
    used = position < counts[..., None]
    columns = torch.where(used & (columns < none), columns, none).to(torch.int64)
    blocks = torch.zeros(
        (*columns.shape[:-1], none + 1), dtype=torch.bool, device=columns.device
    )
    blocks = blocks.scatter(-1, columns, True)[..., :none]
    pairs = blocks.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
    missing = row_len - pairs.shape[-2]
    # Rows that the tables do not reach have no blocks.
    padded = torch.nn.functional.pad(pairs, (0, 0, 0, max(missing, 0)))
    found = padded[..., :row_len, :column_len]
    return found.transpose(-1, -2) if transposed else found
