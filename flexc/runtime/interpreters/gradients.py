"""`flex.attention` as a function that torch can differentiate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)

from flexc.dialects import flex
from flexc.runtime.interpreters import run_function
from flexc.runtime.interpreters.dense import Problem
from flexc.runtime.interpreters.flex import live_pairs
from flexc.runtime.interpreters.values import dtype_of


def run_recorded(module: ModuleOp, args: Sequence[object]) -> tuple[Tensor, Tensor]:
    """Out and lse of a `flex` module's attention, recorded by autograd."""
    out, lse = run_function(module, args, RecordedFlexFunctions())
    return out, lse


@register_impls
class RecordedFlexFunctions(InterpreterFunctions):
    """Dense attention in which nothing depends on a pair that does not count."""

    @impl(flex.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: flex.AttentionOp, args: PythonValues
    ) -> PythonValues:
        problem = Problem.of(op, args)
        dtype = dtype_of(op.score_type)
        key = problem.per_query_head(problem.key).to(dtype)
        value = problem.per_query_head(problem.value).to(dtype)
        products = problem.query.to(dtype) @ key.transpose(-1, -2)
        scores = modified(interpreter, op, problem, products * problem.scale)
        out, lse = softmax(scores, value)
        return out.to(problem.query.dtype), lse


def modified(
    interpreter: Interpreter, op: flex.AttentionOp, problem: Problem, scores: Tensor
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
    op: flex.AttentionOp,
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
