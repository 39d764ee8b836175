"""The meaning of the derivatives of attention: torch's own, of dense attention.

Nothing is shared with the passes that take derivatives apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
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
from flexc.dialects.flex.pair_sums import element_of, is_float_tensor
from flexc.runtime.interpreters.dense import Problem
from flexc.runtime.interpreters.recorded import Point, attend_recorded
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class DerivativeFunctions(InterpreterFunctions):
    """Gradients of attention, their tangents, and the tangents of its results."""

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
    """Attention at the operands of a derivative op, recorded in a wide type."""

    op: flex.DerivativeOp
    values: dict[SSAValue, Tensor]
    names: list[str]
    """Of the point's leaves."""
    dtype: torch.dtype
    point: Point

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
            """Wide, so that what is added up into its gradient is."""
            given = values[value]
            if not is_float_tensor(value.type):
                return given
            return given.detach().to(dtype).requires_grad_()

        inputs = leaf(op.query), leaf(op.key), leaf(op.value)
        captures = [leaf(v) for v in op.captures]
        tables = [values[v] for v in op.tables]
        problem = Problem(*inputs, values[op.scale], captures, tables)
        problem.verify_facts(op)
        results = attend_recorded(interpreter, op, problem, dtype)
        names = ["query", "key", "value"]
        names += [f"{CAPTURE}{i}" for i in range(len(captures))]
        leaves = [v if v.requires_grad else None for v in (*inputs, *captures)]
        return cls(op, values, names, dtype, Point(leaves, results))

    def along(self) -> list[Tensor | None]:
        """The tangents of the leaves."""
        return [self.tangent(name) for name in self.names]

    def tangent(self, name: str) -> Tensor | None:
        value = self.op.tangent_of(name)
        return None if value is None else self.values[value].to(self.dtype)

    def backward(self) -> dict[str, Tensor | None]:
        """Gradients by name, or their tangents if there are some."""
        d_out, *d_lse = (self.values[v].to(self.dtype) for v in self.op.cotangents)
        cotangents = [d_out, d_lse[0] if d_lse else None]
        if not self.op.tangents:
            return dict(zip(self.names, self.point.gradients(cotangents), strict=True))
        moving = [self.tangent(name) for name in ("d_out", "d_lse")]
        found = self.point.gradient_tangents(cotangents, moving, self.along())
        return dict(zip(self.names, found, strict=True))

    def result(self, value: Tensor | None, declared: SSAValue) -> Tensor:
        assert value is not None
        return value.detach().to(dtype_of(element_of(declared)))
