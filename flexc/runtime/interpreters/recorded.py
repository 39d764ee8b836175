"""Dense attention as a function that torch differentiates, at one point.

Forward mode is reverse mode twice: a gradient is linear in its cotangents, and the
gradient of that, along tangents, with respect to them is the Jacobian's product. The
tangents of a gradient are gradients again: Hessians are symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from xdsl.interpreter import Interpreter

from flexc.dialects import flex
from flexc.runtime.interpreters.dense import Problem
from flexc.runtime.interpreters.flex import live_pairs
from flexc.runtime.interpreters.values import dtype_of

Tensors = Sequence[Tensor | None]
"""Aligned with leaves, or with out and lse; None for zero."""


@dataclass(frozen=True, eq=False)
class Point:
    """Dense attention of some leaves, recorded by autograd."""

    leaves: Tensors
    """None where there is no derivative."""
    results: tuple[Tensor, Tensor]

    def gradients(
        self, cotangents: Tensors, create_graph: bool = False
    ) -> list[Tensor | None]:
        """Along cotangents of out and lse; aligned with the leaves."""
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        found = iter(gradients(self.results, leaves, cotangents, create_graph))
        return [None if leaf is None else next(found) for leaf in self.leaves]

    def tangents(self, along: Tensors) -> tuple[Tensor, Tensor]:
        """Of out and lse, along tangents of the leaves."""
        cotangents = [torch.zeros_like(r).requires_grad_() for r in self.results]
        product = sum_of_products(self.gradients(cotangents, True), along)
        t_out, t_lse = gradients([product], cotangents, [None])
        return t_out, t_lse

    def gradient_tangents(
        self, cotangents: Tensors, t_cotangents: Tensors, along: Tensors
    ) -> list[Tensor | None]:
        """Of the gradients, along tangents of the cotangents and of the leaves."""
        product = sum_of_products(self.gradients(cotangents, True), along)
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        bent = iter(gradients([product], leaves, [None]))
        straight = self.gradients(t_cotangents)
        return [None if g is None else g + next(bent) for g in straight]


def gradients(
    results: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Tensors,
    create_graph: bool = False,
) -> list[Tensor]:
    """Gradients of the results; zeros where nothing depends on a leaf."""
    used = [
        (r, c)
        for r, c in zip(results, cotangents, strict=True)
        if r.requires_grad and (c is not None or r.dim() == 0)
    ]
    if not used or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(
        [r for r, _ in used],
        leaves,
        [c for _, c in used],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]


def sum_of_products(gradients: Tensors, tangents: Tensors) -> Tensor:
    """The sum of products of gradients with the tangents of what they are of."""
    products = [
        (g * t).sum(dtype=torch.float64)
        for g, t in zip(gradients, tangents, strict=True)
        if g is not None and t is not None
    ]
    return torch.stack(products).sum() if products else torch.zeros(())


def attend_recorded(
    interpreter: Interpreter,
    op: flex.WithMods,
    problem: Problem,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Out and lse, of which nothing depends on a pair that does not count.

    In `compute_dtype`, or else in the type of the scores, as `attend` does.
    """
    score_dtype = dtype_of(flex.score_type(op.query.type))
    dtype = compute_dtype or score_dtype
    key = problem.per_query_head(problem.key).to(dtype)
    value = problem.per_query_head(problem.value).to(dtype)
    products = problem.query.to(dtype) @ key.transpose(-1, -2)
    scores = (products * problem.scale.to(dtype)).to(score_dtype)
    return softmax(modified(interpreter, op, problem, scores).to(dtype), value)


def modified(
    interpreter: Interpreter, op: flex.WithMods, problem: Problem, scores: Tensor
) -> Tensor:
    """What `score_mod` makes of the scores of pairs that count, -inf elsewhere.

    It sees no others: a derivative there may be NaN, and times zero it still is.
    """
    with torch.no_grad():
        live = live_pairs(interpreter, op, problem).expand(problem.shape)
        live = live & (_modify(interpreter, op, problem, scores, live) != -torch.inf)
    return _modify(interpreter, op, problem, scores, live)


def _modify(
    interpreter: Interpreter,
    op: flex.WithMods,
    problem: Problem,
    scores: Tensor,
    live: Tensor,
) -> Tensor:
    pairs = live.nonzero(as_tuple=True)
    indices = [p.to(torch.int32) for p in pairs]
    args = (scores[pairs], *indices, *problem.captures)
    (values,) = interpreter.run_ssacfg_region(op.regions[0], args, "score_mod")
    values = values.to(scores.dtype).expand(indices[0].shape)
    return torch.full_like(scores, -torch.inf).index_put(pairs, values)


def softmax(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted values and logsumexp; a row with nothing to attend to is constant."""
    maximum = scores.detach().amax(-1)
    empty = maximum == -torch.inf
    maximum = torch.where(empty, 0.0, maximum)
    weights = (scores - maximum[..., None]).exp()
    total = torch.where(empty, 1.0, weights.sum(-1))
    out = torch.where(empty[..., None], 0.0, weights @ value / total[..., None])
    return out, torch.where(empty, -torch.inf, maximum + total.log())
