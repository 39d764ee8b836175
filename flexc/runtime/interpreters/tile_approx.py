"""The meaning of what hardware approximates: the function itself."""

from __future__ import annotations

from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)

from flexc.dialects import tile


@register_impls
class TileApproxFunctions(InterpreterFunctions):
    """Scalar ops of the `tile` dialect that promise a few bits only."""

    @impl(tile.TanhApproxOp)
    def run_tanh(
        self, interpreter: Interpreter, op: tile.TanhApproxOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].tanh(),)
