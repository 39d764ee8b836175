"""The meaning of functions and structured control flow, on numbers that are tensors."""

from __future__ import annotations

import torch
from xdsl.dialects import func, scf
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_callable,
    impl_terminator,
    register_impls,
)

from flexc.runtime.interpreters.values import dtype_of


@register_impls
class ControlFunctions(InterpreterFunctions):
    """Loops and conditions of the code around regions of scalar code."""

    @impl(scf.ForOp)
    def run_for(
        self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues
    ) -> PythonValues:
        begin, end, step = (int(a) for a in args[:3])
        carried = tuple(args[3:])
        dtype = dtype_of(op.body.block.args[0].type)
        for i in range(begin, end, step):
            index = torch.tensor(i, dtype=dtype)
            carried = interpreter.run_ssacfg_region(op.body, (index, *carried), "for")
        return carried

    @impl(scf.IfOp)
    def run_if(
        self, interpreter: Interpreter, op: scf.IfOp, args: PythonValues
    ) -> PythonValues:
        region = op.true_region if args[0] else op.false_region
        return interpreter.run_ssacfg_region(region, (), "if")

    @impl_terminator(scf.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: scf.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()


@register_impls
class CallFunctions(InterpreterFunctions):
    """Functions, as xDSL's own implementation has them.

    That one comes with those of all dialects, which take long to import.
    """

    @impl_callable(func.FuncOp)
    def call(
        self, interpreter: Interpreter, op: func.FuncOp, args: PythonValues
    ) -> PythonValues:
        return interpreter.run_ssacfg_region(op.body, args, op.sym_name.data)

    @impl(func.CallOp)
    def run_call(
        self, interpreter: Interpreter, op: func.CallOp, args: PythonValues
    ) -> PythonValues:
        return interpreter.call_op(op.callee, args)

    @impl_terminator(func.ReturnOp)
    def run_return(
        self, interpreter: Interpreter, op: func.ReturnOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()
