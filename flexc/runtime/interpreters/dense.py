"""Dense attention: all pairs at once, as torch would compute it by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from xdsl.interpreter import Interpreter
from xdsl.ir import Region
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.flex import RESULTS, AttentionLike, PairsOp
from flexc.runtime.interpreters.values import dtype_of


class Pairs:
    """All pairs of positions of an op, and what its regions read besides.

    `shape` is (B, Hq, Sq, Skv): the shape of all scores.
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
        """(b, h, q_idx, kv_idx), each shaped to broadcast to all scores."""
        return [self.index(n, axis, 4) for axis, n in enumerate(self.shape)]

    def index(self, size: int, axis: int, rank: int) -> Tensor:
        """0, 1, ... as i32 along one of `rank` axes."""
        index = torch.arange(size, dtype=torch.int32, device=self.device)
        return index.view([size if a == axis else 1 for a in range(rank)])

    def per_query_head(self, tensor: Tensor) -> Tensor:
        """Key or value with each head repeated for the query heads that read it."""
        heads = self.shape[1]
        if tensor.shape[1] in (heads, 0):
            return tensor
        return tensor.repeat_interleave(heads // tensor.shape[1], 1)

    def verify_lengths(self, op: PairsOp) -> None:
        """Raise where a fact about lengths is claimed that these operands belie."""
        for name, size in zip(LENGTH_FACTS, self.shape[2:], strict=True):
            if size % op.fact(name):
                raise InterpretationError(
                    f"{name} expects a multiple of {op.fact(name)}, got {size}"
                )


LENGTH_FACTS = ("q_len_multiple", "kv_len_multiple")


@dataclass(frozen=True)
class Share:
    """One of several equal shares of a range; of what is left, the last have more."""

    number: int = 0
    count: int = 1

    def of(self, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """This share of ranges, which may be reversed: then there is nothing."""
        length = (end - begin).clamp(min=0)
        size, left = length // self.count, length % self.count
        extra = self.number - (self.count - left)
        first = begin + self.number * size + extra.clamp(min=0)
        return first, first + size + (extra >= 0)


def shares(count: int) -> list[Share]:
    return [Share(number, count) for number in range(count)]


@dataclass(frozen=True)
class Problem(Pairs):
    """The operands of one attention op."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Tensor
    captures: Sequence[Tensor]
    tables: Sequence[Tensor]
    splits: int | None = None
    """Into how many splits the keys of each row are divided, if they are."""

    @classmethod
    def of(cls, op: AttentionLike, args: Sequence[Tensor]) -> Problem:
        query, key, value, scale, *rest = args
        splits = None if op.splits is None else int(rest.pop())
        n = len(op.captures)
        problem = cls(query, key, value, scale, rest[:n], rest[n:], splits)
        problem.verify_facts(op)
        return problem

    def verify_facts(self, op: PairsOp) -> None:
        """Raise where a fact is claimed that these operands belie."""
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


def evaluate_mask(interpreter: Interpreter, mask_mod: Region, problem: Pairs) -> Tensor:
    """Where `mask_mod` is true; broadcasts to all scores."""
    args = (*problem.indices, *problem.captures)
    (mask,) = interpreter.run_ssacfg_region(mask_mod, args, "mask_mod")
    return mask


def attend_splits(
    interpreter: Interpreter,
    op: AttentionLike,
    problem: Problem,
    live: Callable[[Share], Tensor],
    compute_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    """The op's results, of all splits: `live` says where pairs of a share count."""
    if problem.splits is None:
        return attend(interpreter, op, problem, live(Share()), compute_dtype)
    found = [
        attend(interpreter, op, problem, live(share), compute_dtype)
        for share in shares(problem.splits)
    ]
    return tuple(
        torch.stack(each, 1).flatten(0, 1) for each in zip(*found, strict=True)
    )


def attend(
    interpreter: Interpreter,
    op: AttentionLike,
    problem: Problem,
    live: Tensor,
    compute_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    """The op's results, given where pairs are live.

    Products, softmax and sums are taken in `compute_dtype`; what `score_mod`
    receives and returns has the type that its region says.
    """
    score_dtype = dtype_of(op.score_type)
    dtype = compute_dtype or score_dtype
    key = problem.per_query_head(problem.key).to(dtype)
    scores = problem.query.to(dtype) @ key.transpose(-1, -2)
    scores = (scores * problem.scale.to(dtype)).to(score_dtype)
    args = (scores, *problem.indices, *problem.captures)
    (scores,) = interpreter.run_ssacfg_region(op.regions[0], args, "score_mod")
    scores = torch.where(live, scores.to(dtype), -torch.inf).expand(problem.shape)
    value = problem.per_query_head(problem.value).to(dtype)
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
    """Weighted values, logsumexp and maximum of each row.

    A row whose scores are all -inf, or that has none, yields 0, -inf and -inf, one
    with an infinite score NaN, inf and inf, and one with NaN nothing else.
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
