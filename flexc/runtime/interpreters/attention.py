"""Interpreter of `flex.attention`, which computes all pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

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

from flexc.dialects import flex
from flexc.dialects.flex import RESULTS, AttentionLike, PairsOp
from flexc.runtime.interpreters.memory import in_sequence
from flexc.runtime.interpreters.values import dense_array, dtype_of


class Pairs:
    """All pairs of positions of an op, with the captures and tables of its regions.

    `shape` is (B, Hq, Sq, Skv), the shape of all scores.
    """

    captures: Sequence[Tensor]
    tables: Sequence[Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    @cached_property
    def indices(self) -> list[Tensor]:
        """The tensors b, h, q_idx and kv_idx, shaped to broadcast to all scores."""
        return [self.index(n, axis, 4) for axis, n in enumerate(self.shape)]

    def index(self, size: int, axis: int, rank: int) -> Tensor:
        """Return 0, 1, ..., size - 1 as i32 along one of `rank` axes."""
        index = torch.arange(size, dtype=torch.int32, device=self.device)
        return index.view([size if a == axis else 1 for a in range(rank)])

    def for_query_heads(self, tensor: Tensor) -> Tensor:
        """Repeat the heads of a key or value, one for each query head."""
        heads = self.shape[1]
        if tensor.shape[1] in (heads, 0):
            return tensor
        return tensor.repeat_interleave(heads // tensor.shape[1], 1)

    def verify_lengths(self, op: PairsOp) -> None:
        """Raise InterpretationError if the lengths contradict a fact of the op."""
        for name, size in zip(LENGTH_FACTS, self.shape[2:], strict=True):
            if size % op.fact(name):
                raise InterpretationError(
                    f"{name} expects a multiple of {op.fact(name)}, got {size}"
                )


LENGTH_FACTS = ("q_len_multiple", "kv_len_multiple")


@dataclass(frozen=True)
class Share:
    """One of `count` nearly equal shares of a range.

    If the length is no multiple of `count`, the last shares are longer by one.
    """

    number: int = 0
    count: int = 1

    def of(self, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Return begin and end of the share of ranges; reversed ranges are empty."""
        length = (end - begin).clamp(min=0)
        size, left = length // self.count, length % self.count
        extra = self.number - (self.count - left)
        first = begin + self.number * size + extra.clamp(min=0)
        return first, first + size + (extra >= 0)


@dataclass(frozen=True)
class DenseProblem(Pairs):
    """The operands of one attention op."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Tensor
    captures: Sequence[Tensor]
    tables: Sequence[Tensor]
    splits: int | None = None
    """The number of splits of each row's keys, or None."""

    @classmethod
    def of(cls, op: AttentionLike, args: Sequence[Tensor]) -> DenseProblem:
        query, key, value, scale, *rest = args
        splits = None if op.splits is None else int(rest.pop())
        value_scale = None if op.value_scale is None else rest.pop()
        key_scale = None if op.key_scale is None else rest.pop()
        if op.page_table is not None:
            table = rest.pop()
            key, value = (in_sequence(t, table) for t in (key, value))
        key = scaled(key, key_scale, query.dtype)
        value = scaled(value, value_scale, query.dtype)
        n = len(op.captures)
        problem = cls(query, key, value, scale, rest[:n], rest[n:], splits)
        problem.verify_facts(op)
        return problem

    def verify_facts(self, op: PairsOp) -> None:
        """Raise InterpretationError if the operands contradict a fact of the op."""
        self.verify_lengths(op)
        if op.scale_positive is not None and not self.scale > 0:
            raise InterpretationError(
                f"scale_positive expects a positive scale, got {self.scale.item()}"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, q_len, _ = self.query.shape
        return batch, heads, q_len, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        return self.query.device


def scaled(tensor: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the numbers that narrow keys or values stand for."""
    if scale is None:
        return tensor.to(dtype)
    factors = scale.double()[..., None]
    return tensor.double() * (factors if scale.dim() == 3 else factors[..., None])


def evaluate_mask(interpreter: Interpreter, mask_mod: Region, problem: Pairs) -> Tensor:
    """Return where `mask_mod` is true, broadcastable to all scores."""
    args = (*problem.indices, *problem.captures)
    (mask,) = interpreter.run_ssacfg_region(mask_mod, args, "mask_mod")
    return mask.to(problem.indices[0].device)


def attend_splits(
    interpreter: Interpreter,
    op: AttentionLike,
    problem: DenseProblem,
    live: Callable[[Share], Tensor],
    compute_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    """Return the op's results for all splits, stacked along the batches.

    `live` returns the live pairs of a share of the keys.
    """
    if problem.splits is None:
        return attend(interpreter, op, problem, live(Share()), compute_dtype)
    found = [
        attend(interpreter, op, problem, live(share), compute_dtype)
        for share in (Share(n, problem.splits) for n in range(problem.splits))
    ]
    return tuple(
        torch.stack(each, 1).flatten(0, 1) for each in zip(*found, strict=True)
    )


def attend(
    interpreter: Interpreter,
    op: AttentionLike,
    problem: DenseProblem,
    live: Tensor,
    compute_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    """Return the op's results, given the live pairs.

    Products, softmax and sums are computed in `compute_dtype`. The operand and result
    of `score_mod` have the types of the region.
    """
    score_dtype = dtype_of(op.score_type)
    dtype = compute_dtype or score_dtype
    key = problem.for_query_heads(problem.key).to(dtype)
    scores = problem.query.to(dtype) @ key.transpose(-1, -2)
    scores = (scores * problem.scale.to(dtype)).to(score_dtype)
    args = (scores, *problem.indices, *problem.captures)
    (scores,) = interpreter.run_ssacfg_region(op.score_mod, args, "score_mod")
    scores = torch.where(live, scores.to(dtype), -torch.inf).expand(problem.shape)
    value = problem.for_query_heads(problem.value).to(dtype)
    out, lse, maximum = softmax(scores, value)
    found = (
        out,
        lse,
        maximum,
        maximum,
        torch.where(lse.isinf(), lse, lse - maximum),
        torch.where(lse.isinf(), 0.0, lse - lse.to(score_dtype).to(dtype)),
    )
    wanted = [getattr(op, name) for name in RESULTS]
    return tuple(
        result.to(dtype_of(declared.type.element_type))
        for result, declared in zip(found, wanted, strict=True)
        if declared is not None
    )


def softmax(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted values, the logsumexp and the maximum of each row.

    A row without scores above -inf yields 0, -inf and -inf. A row with an infinite
    score yields NaN, inf and inf. A row with NaN yields NaN only.
    """
    if scores.shape[-1] == 0:
        maximum = scores.new_full(scores.shape[:-1], -torch.inf)
    else:
        maximum = scores.amax(-1)
    empty = maximum == -torch.inf
    weights = (scores - torch.where(empty, 0.0, maximum)[..., None]).exp()
    total = weights.sum(-1)
    out = weights @ value / torch.where(empty, 1.0, total)[..., None]
    lse = torch.where(empty, 0.0, maximum) + total.log()
    return out, torch.where(maximum == torch.inf, maximum, lse), maximum


@register_impls
class FlexFunctions(InterpreterFunctions):
    """The interpreter of dense attention under a mask, and of combining splits."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(flex.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: flex.AttentionOp, args: PythonValues
    ) -> PythonValues:
        problem = DenseProblem.of(op, args)
        pairs = live_pairs(interpreter, op, problem)

        def live(share: Share) -> Tensor:
            # A lowering may divide the keys into other shares.
            kv_idx = problem.indices[3]
            ends = (kv_idx.new_tensor(n) for n in (0, problem.shape[3]))
            first, end = share.of(*ends)
            return pairs & (kv_idx >= first) & (kv_idx < end)

        return attend_splits(interpreter, op, problem, live, self.compute_dtype)

    @impl(flex.CombineSplitsOp)
    def run_combine_splits(
        self, interpreter: Interpreter, op: flex.CombineSplitsOp, args: PythonValues
    ) -> PythonValues:
        outs, row_shift, log_sum = (t.to(self.compute_dtype or t.dtype) for t in args)
        # A split without pairs has an arbitrary shift, and -inf as logarithm.
        lse = row_shift + log_sum
        total = lse.logsumexp(-1)
        largest = torch.where(log_sum == -torch.inf, -torch.inf, row_shift)
        largest = largest.amax(-1, keepdim=True)
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        weights = (row_shift - largest + log_sum).exp()[..., None]
        sums = torch.where(weights == 0, 0.0, weights * outs).sum(-2)
        whole = weights.sum(-2)
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
    """Return the pairs that mask and tables keep, broadcastable to all scores.

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
    """Return the pairs in the blocks that the counts and indices of each row list."""
    counts, columns = tables
    row_len, column_len = problem.shape[:1:-1] if transposed else problem.shape[2:]
    # An extra column receives the entries that do not count.
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
    # Rows beyond the tables have no blocks.
    padded = torch.nn.functional.pad(pairs, (0, 0, 0, max(missing, 0)))
    found = padded[..., :row_len, :column_len]
    return found.transpose(-1, -2) if transposed else found
