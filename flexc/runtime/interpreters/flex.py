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
from flexc.runtime.interpreters.dense import Pairs, Problem, attend, evaluate_mask
from flexc.runtime.interpreters.values import dense_array


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
        live = live_pairs(interpreter, op, problem)
        return attend(interpreter, op, problem, live, self.compute_dtype)


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
