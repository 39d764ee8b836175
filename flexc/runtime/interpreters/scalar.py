"""The meaning of scalar code: `arith`, `math` and the scalar ops of flexc.

xDSL's own tables cover a third of these ops, and Python numbers only. Here
every number is a torch tensor, so a region runs once for all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Operation
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import flex, tile
from flexc.dialects.flex.ties import Ties, ties_of
from flexc.runtime.interpreters import floats, integers
from flexc.runtime.interpreters.floats import widened
from flexc.runtime.interpreters.integers import on_bits, on_unsigned_bits
from flexc.runtime.interpreters.memory import read_storage
from flexc.runtime.interpreters.values import dtype_of

Function = Callable[..., Tensor]

INTEGER: dict[type[Operation], Function] = {
    arith.AddiOp: on_bits(torch.add),
    arith.SubiOp: on_bits(torch.sub),
    arith.MuliOp: on_bits(torch.mul),
    arith.DivSIOp: on_bits(integers.trunc_divide),
    arith.DivUIOp: on_unsigned_bits(integers.divide_unsigned),
    arith.FloorDivSIOp: on_bits(integers.floor_divide),
    arith.CeilDivSIOp: on_bits(integers.ceil_divide),
    arith.CeilDivUIOp: on_unsigned_bits(integers.ceil_divide_unsigned),
    arith.RemSIOp: on_bits(integers.remainder),
    arith.RemUIOp: on_unsigned_bits(integers.remainder_unsigned),
    arith.MinSIOp: on_bits(torch.minimum),
    arith.MaxSIOp: on_bits(torch.maximum),
    arith.MinUIOp: integers.min_unsigned,
    arith.MaxUIOp: integers.max_unsigned,
    arith.AndIOp: torch.bitwise_and,
    arith.OrIOp: torch.bitwise_or,
    arith.XOrIOp: torch.bitwise_xor,
    arith.ShLIOp: on_bits(integers.shift_left),
    arith.ShRSIOp: on_bits(integers.shift_right),
    arith.ShRUIOp: on_unsigned_bits(integers.shift_right_unsigned),
    math.AbsIOp: on_bits(torch.abs),
    math.CountLeadingZerosOp: integers.leading_zeros,
    math.CountTrailingZerosOp: integers.trailing_zeros,
    math.CtPopOp: integers.popcount,
    math.IPowIOp: on_bits(integers.power),
}

FLOAT: dict[type[Operation], Function] = {
    arith.AddfOp: torch.add,
    arith.SubfOp: torch.sub,
    arith.MulfOp: torch.mul,
    arith.DivfOp: torch.div,
    arith.NegfOp: torch.neg,
    arith.MaxnumfOp: torch.fmax,
    arith.MinnumfOp: torch.fmin,
    flex.FmodOp: widened(torch.fmod),
    math.AbsFOp: torch.abs,
    math.AcosOp: widened(torch.acos),
    math.AcoshOp: widened(torch.acosh),
    math.AsinOp: widened(torch.asin),
    math.AsinhOp: widened(torch.asinh),
    math.AtanOp: widened(torch.atan),
    math.Atan2Op: widened(torch.atan2),
    math.AtanhOp: widened(torch.atanh),
    math.CbrtOp: floats.cube_root,
    math.CeilOp: widened(torch.ceil),
    math.CopySignOp: widened(torch.copysign),
    math.CosOp: widened(torch.cos),
    math.CoshOp: widened(torch.cosh),
    math.ErfOp: widened(torch.erf),
    math.ExpOp: widened(torch.exp),
    math.Exp2Op: widened(torch.exp2),
    math.ExpM1Op: widened(torch.expm1),
    math.FloorOp: widened(torch.floor),
    math.FmaOp: floats.fused_multiply_add,
    math.FPowIOp: floats.power_of_integer,
    math.LogOp: widened(torch.log),
    math.Log10Op: widened(torch.log10),
    math.Log1pOp: widened(torch.log1p),
    math.Log2Op: widened(torch.log2),
    math.PowFOp: widened(torch.pow),
    math.RoundEvenOp: widened(torch.round),
    math.RoundOp: widened(floats.round_half_away),
    math.RsqrtOp: widened(torch.rsqrt),
    math.SinOp: widened(torch.sin),
    math.SinhOp: widened(torch.sinh),
    math.SqrtOp: widened(torch.sqrt),
    math.TanOp: widened(torch.tan),
    math.TanhOp: widened(torch.tanh),
    math.TruncOp: widened(torch.trunc),
}

CASTS: dict[type[Operation], Function] = {
    arith.BitcastOp: floats.bitcast,
    arith.ExtFOp: floats.convert,
    arith.TruncFOp: floats.convert,
    arith.FPToSIOp: floats.to_integer,
    arith.FPToUIOp: floats.to_integer_unsigned,
    arith.SIToFPOp: integers.to_float,
    arith.UIToFPOp: integers.to_float_unsigned,
    arith.ExtSIOp: integers.extend,
    arith.ExtUIOp: integers.extend_unsigned,
    arith.TruncIOp: integers.truncate,
    arith.IndexCastOp: integers.extend,
}
"""Functions of a value and the dtype it is to have."""


def _pointwise(function: Function) -> Callable[..., OpImplResult]:
    def run(_ft: Any, _interpreter: Any, _op: Any, args: PythonValues) -> OpImplResult:
        return OpImplResult((function(*args),), None)

    return run


def _cast(function: Function) -> Callable[..., OpImplResult]:
    def run(_ft: Any, _interpreter: Any, op: Any, args: PythonValues) -> OpImplResult:
        return OpImplResult((function(args[0], dtype_of(op.results[0].type)),), None)

    return run


_TABLE = {op: _pointwise(f) for op, f in (INTEGER | FLOAT).items()}
_TABLE |= {op: _cast(f) for op, f in CASTS.items()}


@register_impls
class ScalarFunctions(InterpreterFunctions):
    """All scalar ops: the tables above, and those that have attributes."""

    def __init__(self):
        # Programs of a kernel meet the same constants again and again.
        self.constants: dict[arith.ConstantOp, Tensor] = {}

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Callable[..., OpImplResult]]]:
        yield from super()._impls()
        yield from _TABLE.items()

    @impl(arith.ConstantOp)
    def run_constant(
        self, interpreter: Interpreter, op: arith.ConstantOp, args: PythonValues
    ) -> PythonValues:
        value = self.constants.get(op)
        if value is None:
            value = self.constants[op] = constant(op)
        return (value,)

    @impl(arith.SelectOp)
    def run_select(
        self, interpreter: Interpreter, op: arith.SelectOp, args: PythonValues
    ) -> PythonValues:
        return (torch.where(*args),)

    @impl(arith.MaximumfOp)
    def run_maximumf(
        self, interpreter: Interpreter, op: arith.MaximumfOp, args: PythonValues
    ) -> PythonValues:
        return (extremum(op, torch.maximum, *args),)

    @impl(arith.MinimumfOp)
    def run_minimumf(
        self, interpreter: Interpreter, op: arith.MinimumfOp, args: PythonValues
    ) -> PythonValues:
        return (extremum(op, torch.minimum, *args),)

    @impl(arith.CmpiOp)
    def run_cmpi(
        self, interpreter: Interpreter, op: arith.CmpiOp, args: PythonValues
    ) -> PythonValues:
        return (integers.compare(op.predicate.value.data, *args),)

    @impl(arith.CmpfOp)
    def run_cmpf(
        self, interpreter: Interpreter, op: arith.CmpfOp, args: PythonValues
    ) -> PythonValues:
        return (floats.CMPF[op.predicate.value.data](*args),)

    @impl(flex.LoadCaptureOp)
    def run_load_capture(
        self, interpreter: Interpreter, op: flex.LoadCaptureOp, args: PythonValues
    ) -> PythonValues:
        # Whoever differentiates passes wider tensors.
        value = load_capture(args[0], args[1:])
        return (value.to(dtype_of(op.result.type)),)

    @impl(flex.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: flex.DimOp, args: PythonValues
    ) -> PythonValues:
        size = args[0].shape[op.dim.value.data]
        return (torch.tensor(size, dtype=dtype_of(op.result.type)),)

    @impl(tile.ReadOp)
    def run_read(
        self, interpreter: Interpreter, op: tile.ReadOp, args: PythonValues
    ) -> PythonValues:
        tensor, offset, *valid = args
        return (read_storage(tensor, offset, valid[0] if valid else None),)

    @impl_terminator(flex.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: flex.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()


def extremum(op: Operation, function: Function, lhs: Tensor, rhs: Tensor) -> Tensor:
    """A maximum or minimum; whose derivative it is where both are equal, it says."""
    value = function(lhs, rhs)
    match ties_of(op):
        case Ties.LHS:
            return torch.where(lhs == rhs, lhs, value)
        case Ties.RHS:
            return torch.where(lhs == rhs, rhs, value)
        case Ties.HALVES:
            return value


def constant(op: arith.ConstantOp) -> Tensor:
    """The number that a constant says."""
    dtype = dtype_of(op.result.type)
    if isinstance(op.value, FloatAttr):
        return torch.tensor(op.value.value.data, dtype=dtype)
    if isinstance(op.value, IntegerAttr):
        # Through int64: 255 is an i8 constant as good as -1.
        return torch.tensor(op.value.value.data).to(dtype)
    raise InterpretationError(f"expected a number as constant, got {op.value}")


def load_capture(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """`tensor[indices]`, 0 where an index is out of range."""
    if not indices:
        return tensor
    wide = [i.to(torch.int64) for i in indices]
    valid = torch.ones((), dtype=torch.bool, device=tensor.device)
    for index, size in zip(wide, tensor.shape, strict=True):
        valid = valid & (index >= 0) & (index < size)
    if tensor.numel() == 0:
        return tensor.new_zeros(valid.shape)
    inside = [i.clamp(0, n - 1) for i, n in zip(wide, tensor.shape, strict=True)]
    # Python's `tensor[i]` would read an index without dimensions on the host.
    value = torch.ops.aten.index.Tensor(tensor, inside)
    return torch.where(valid, value, tensor.new_zeros(()))
