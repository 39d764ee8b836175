"""Scalar code on a device, without waiting for it."""

from __future__ import annotations

import torch
from xdsl.dialects import arith
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls

from flexc.dialects import flex
from flexc.runtime.interpreters.scalar import ScalarFunctions, constant
from flexc.runtime.interpreters.values import dtype_of
from flexc.runtime.tapes.recorder import recorder


@register_impls
class ScalarsOnDevice(ScalarFunctions):
    """Scalar code whose constants are made on a device: copies would wait for it."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    @impl(arith.ConstantOp)
    def run_constant(
        self, interpreter: Interpreter, op: arith.ConstantOp, args: PythonValues
    ) -> PythonValues:
        value = self.constants.get(op)
        if value is None:
            host = constant(op)
            value = torch.full((), host.item(), dtype=host.dtype, device=self.device)
            self.constants[op] = value
        elif (tape := recorder()) is not None:
            tape.hold(value)
        return (value,)

    @impl(flex.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: flex.DimOp, args: PythonValues
    ) -> PythonValues:
        size = args[0].shape[op.dim.value.data]
        dtype = dtype_of(op.result.type)
        return (torch.full((), size, dtype=dtype, device=self.device),)
