"""`flex.attention` as a function that torch can differentiate."""

from __future__ import annotations

from collections.abc import Sequence

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
from flexc.runtime.interpreters.recorded import attend_recorded


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
        out, lse = attend_recorded(interpreter, op, problem)
        return out.to(problem.query.dtype), lse
