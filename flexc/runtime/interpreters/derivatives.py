"""Interpreter of attention's derivatives, by torch's autograd on dense attention.

This code shares nothing with the passes that expand derivatives. Forward mode is double
reverse mode: a gradient is linear in its cotangents, and differentiating the gradient's
product with tangents by the cotangents gives the Jacobian-vector product. The tangents
of gradients are gradients too, since Hessians are symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE
from flexc.dialects.flex.pair_sums import is_float_tensor
from flexc.runtime.interpreters.attention import DenseProblem, live_pairs
from flexc.runtime.interpreters.scalar import (
    ControlFunctions,
    ScalarFunctions,
    call_function,
)
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class DerivativeFunctions(InterpreterFunctions):
    """The interpreter of gradients, their tangents, and forward mode."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(flex.AttentionBackwardOp)
    def run_backward(
        self, interpreter: Interpreter, op: flex.AttentionBackwardOp, args: PythonValues
    ) -> PythonValues:
        with torch.enable_grad():
            recorded = Recorded.of(interpreter, op, args, self.compute_dtype)
            found = recorded.backward()
        results = zip(op.wanted(), op.derivatives, strict=True)
        return tuple(recorded.result(found[n], r) for n, r in results)

    @impl(flex.AttentionJvpOp)
    def run_jvp(
        self, interpreter: Interpreter, op: flex.AttentionJvpOp, args: PythonValues
    ) -> PythonValues:
        with torch.enable_grad():
            recorded = Recorded.of(interpreter, op, args, self.compute_dtype)
            found = recorded.point.tangents(recorded.along())
        results = zip(found, op.derivatives, strict=True)
        return tuple(recorded.result(t, r) for t, r in results)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded evaluation of attention at the operands of a derivative op."""

    op: flex.DerivativeOp
    values: dict[SSAValue, Tensor]
    names: list[str]
    """The names of the point's leaves."""
    dtype: torch.dtype
    point: RecordedPoint

    @classmethod
    def of(
        cls,
        interpreter: Interpreter,
        op: flex.DerivativeOp,
        args: Sequence[Tensor],
        compute_dtype: torch.dtype | None,
    ) -> Recorded:
        dtype = compute_dtype or dtype_of(flex.score_type(op.query.type))
        values = dict(zip(op.operands, args, strict=True))

        def leaf(value: SSAValue) -> Tensor:
            """Return a leaf in the wide dtype, in which its gradient is accumulated."""
            given = values[value]
            if not is_float_tensor(value.type):
                return given
            return given.detach().to(dtype).requires_grad_()

        inputs = leaf(op.query), leaf(op.key), leaf(op.value)
        captures = [leaf(v) for v in op.captures]
        tables = [values[v] for v in op.tables]
        problem = DenseProblem(*inputs, values[op.scale], captures, tables)
        problem.verify_facts(op)
        results = attend_recorded(interpreter, op, problem, dtype)
        names = ["query", "key", "value"]
        names += [f"{CAPTURE}{i}" for i in range(len(captures))]
        leaves = [v if v.requires_grad else None for v in (*inputs, *captures)]
        return cls(op, values, names, dtype, RecordedPoint(leaves, results))

    def along(self) -> list[Tensor | None]:
        """Return the tangents of the leaves."""
        return [self.tangent(name) for name in self.names]

    def tangent(self, name: str) -> Tensor | None:
        value = self.op.tangent_of(name)
        return None if value is None else self.values[value].to(self.dtype)

    def backward(self) -> dict[str, Tensor | None]:
        """Return the gradients by name, or their tangents if the op has tangents."""
        d_out, *d_lse = (self.values[v].to(self.dtype) for v in self.op.cotangents)
        cotangents = [d_out, d_lse[0] if d_lse else None]
        if not self.op.tangents:
            return dict(zip(self.names, self.point.gradients(cotangents), strict=True))
        moving = [self.tangent(name) for name in ("d_out", "d_lse")]
        found = self.point.gradient_tangents(cotangents, moving, self.along())
        return dict(zip(self.names, found, strict=True))

    def result(self, value: Tensor | None, declared: SSAValue) -> Tensor:
        assert value is not None
        return value.detach().to(dtype_of(flex.element_type(declared)))


Tensors = Sequence[Tensor | None]
"""Tensors aligned with leaves, or with out and lse; None stands for zero."""


@dataclass(frozen=True, eq=False)
class RecordedPoint:
    """Dense attention of some leaves, recorded by autograd."""

    leaves: Tensors
    """The differentiable operands; None for operands without a derivative."""
    results: tuple[Tensor, Tensor]

    def gradients(
        self, cotangents: Tensors, create_graph: bool = False
    ) -> list[Tensor | None]:
        """Return gradients for cotangents of out and lse, in the order of `leaves`."""
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        found = iter(gradients(self.results, leaves, cotangents, create_graph))
        return [None if leaf is None else next(found) for leaf in self.leaves]

    def tangents(self, along: Tensors) -> tuple[Tensor, Tensor]:
        """Return the tangents of out and lse for tangents of the leaves."""
        cotangents = [torch.zeros_like(r).requires_grad_() for r in self.results]
        product = sum_of_products(self.gradients(cotangents, True), along)
        t_out, t_lse = gradients([product], cotangents, [None])
        return t_out, t_lse

    def gradient_tangents(
        self, cotangents: Tensors, t_cotangents: Tensors, along: Tensors
    ) -> list[Tensor | None]:
        """Return the tangents of the gradients.

        The arguments are cotangents, their tangents, and the tangents of the leaves.
        """
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
    """Return the gradients of results; zeros for a leaf that no result depends on."""
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
    """Return the sum of the products of gradients with the tangents of their leaves."""
    products = [
        (g * t).sum(dtype=torch.float64)
        for g, t in zip(gradients, tangents, strict=True)
        if g is not None and t is not None
    ]
    return torch.stack(products).sum() if products else torch.zeros(())


def attend_recorded(
    interpreter: Interpreter,
    op: flex.WithMods,
    problem: DenseProblem,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return out and lse, which do not depend on dead pairs.

    The computation uses `compute_dtype`, by default the dtype of the scores, as in
    `attend`.
    """
    score_dtype = dtype_of(flex.score_type(op.query.type))
    dtype = compute_dtype or score_dtype
    key = problem.for_query_heads(problem.key).to(dtype)
    value = problem.for_query_heads(problem.value).to(dtype)
    products = problem.query.to(dtype) @ key.transpose(-1, -2)
    scores = (products * problem.scale.to(dtype)).to(score_dtype)
    return softmax(modified(interpreter, op, problem, scores).to(dtype), value)


def modified(
    interpreter: Interpreter, op: flex.WithMods, problem: DenseProblem, scores: Tensor
) -> Tensor:
    """Return `score_mod` of the scores of live pairs, and -inf at dead pairs.

    `score_mod` runs on live pairs only: its derivative at a dead pair may be NaN, and
    NaN times zero is NaN.
    """
    with torch.no_grad():
        live = live_pairs(interpreter, op, problem).expand(problem.shape)
        live = live & (_modify(interpreter, op, problem, scores, live) != -torch.inf)
    return _modify(interpreter, op, problem, scores, live)


def _modify(
    interpreter: Interpreter,
    op: flex.WithMods,
    problem: DenseProblem,
    scores: Tensor,
    live: Tensor,
) -> Tensor:
    pairs = live.nonzero(as_tuple=True)
    indices = [p.to(torch.int32) for p in pairs]
    args = (scores[pairs], *indices, *problem.captures)
    (values,) = interpreter.run_ssacfg_region(op.score_mod, args, "score_mod")
    values = values.to(scores).expand(indices[0].shape)
    return torch.full_like(scores, -torch.inf).index_put(pairs, values)


def softmax(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted values and logsumexp; rows without live pairs are constant."""
    maximum = scores.detach().amax(-1)
    empty = maximum == -torch.inf
    maximum = torch.where(empty, 0.0, maximum)
    weights = (scores - maximum[..., None]).exp()
    total = torch.where(empty, 1.0, weights.sum(-1))
    out = torch.where(empty[..., None], 0.0, weights @ value / total[..., None])
    return out, torch.where(empty, -torch.inf, maximum + total.log())


def run_recorded(module: ModuleOp, args: Sequence[object]) -> tuple[Tensor, Tensor]:
    """Return out and lse of a `flex` module's attention, recorded by autograd."""
    interpreter = Interpreter(module)
    for functions in (ControlFunctions(), ScalarFunctions(), RecordedFlexFunctions()):
        interpreter.register_implementations(functions)
    (function,) = [op for op in module.ops if isinstance(op, func.FuncOp)]
    out, lse = call_function(interpreter, function, args)
    return out, lse


@register_impls
class RecordedFlexFunctions(InterpreterFunctions):
    """The interpreter of dense attention that does not depend on dead pairs."""

    @impl(flex.AttentionOp)
    def run_attention(
        self, interpreter: Interpreter, op: flex.AttentionOp, args: PythonValues
    ) -> PythonValues:
        problem = DenseProblem.of(op, args)
        out, lse = attend_recorded(interpreter, op, problem)
        return out.to(problem.query.dtype), lse
