"""Interpreter of scalar code (`arith`, `math`, scalar ops of flexc) and control flow.

xDSL's own tables cover a third of these ops, and only Python numbers. Here each number
is a torch tensor, so a region runs once for all positions. xDSL's implementation of
functions imports the implementations of all dialects, which takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects import arith, func, math, scf
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_callable,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import flex, tile
from flexc.dialects.constants import float_constant, int_constant
from flexc.dialects.flex.scalar import Ties, ties_of
from flexc.runtime.interpreters.arithmetic import (
    CMPF,
    Function,
    bitcast,
    ceil_divide,
    ceil_divide_unsigned,
    compare,
    convert,
    cube_root,
    divide_unsigned,
    extend,
    extend_unsigned,
    floor_divide,
    fused_multiply_add,
    leading_zeros,
    max_unsigned,
    min_unsigned,
    on_bits,
    on_unsigned_bits,
    popcount,
    power,
    power_of_integer,
    remainder,
    remainder_unsigned,
    round_half_away,
    shift_left,
    shift_right,
    shift_right_unsigned,
    to_float,
    to_float_unsigned,
    to_integer,
    to_integer_unsigned,
    trailing_zeros,
    trunc_divide,
    truncate,
    widened,
)
from flexc.runtime.interpreters.memory import read_storage
from flexc.runtime.interpreters.values import as_value, dtype_of
from flexc.runtime.tapes.recorder import recorder

INTEGER: dict[type[Operation], Function] = {
    arith.AddiOp: on_bits(torch.add),
    arith.SubiOp: on_bits(torch.sub),
    arith.MuliOp: on_bits(torch.mul),
    arith.DivSIOp: on_bits(trunc_divide),
    arith.DivUIOp: on_unsigned_bits(divide_unsigned),
    arith.FloorDivSIOp: on_bits(floor_divide),
    arith.CeilDivSIOp: on_bits(ceil_divide),
    arith.CeilDivUIOp: on_unsigned_bits(ceil_divide_unsigned),
    arith.RemSIOp: on_bits(remainder),
    arith.RemUIOp: on_unsigned_bits(remainder_unsigned),
    arith.MinSIOp: on_bits(torch.minimum),
    arith.MaxSIOp: on_bits(torch.maximum),
    arith.MinUIOp: min_unsigned,
    arith.MaxUIOp: max_unsigned,
    arith.AndIOp: torch.bitwise_and,
    arith.OrIOp: torch.bitwise_or,
    arith.XOrIOp: torch.bitwise_xor,
    arith.ShLIOp: on_bits(shift_left),
    arith.ShRSIOp: on_bits(shift_right),
    arith.ShRUIOp: on_unsigned_bits(shift_right_unsigned),
    math.AbsIOp: on_bits(torch.abs),
    math.CountLeadingZerosOp: leading_zeros,
    math.CountTrailingZerosOp: trailing_zeros,
    math.CtPopOp: popcount,
    math.IPowIOp: on_bits(power),
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
    math.CbrtOp: cube_root,
    math.CeilOp: widened(torch.ceil),
    math.CopySignOp: widened(torch.copysign),
    math.CosOp: widened(torch.cos),
    math.CoshOp: widened(torch.cosh),
    math.ErfOp: widened(torch.erf),
    math.ExpOp: widened(torch.exp),
    math.Exp2Op: widened(torch.exp2),
    math.ExpM1Op: widened(torch.expm1),
    math.FloorOp: widened(torch.floor),
    math.FmaOp: fused_multiply_add,
    math.FPowIOp: power_of_integer,
    math.LogOp: widened(torch.log),
    math.Log10Op: widened(torch.log10),
    math.Log1pOp: widened(torch.log1p),
    math.Log2Op: widened(torch.log2),
    math.PowFOp: widened(torch.pow),
    math.RoundEvenOp: widened(torch.round),
    math.RoundOp: widened(round_half_away),
    math.RsqrtOp: widened(torch.rsqrt),
    math.SinOp: widened(torch.sin),
    math.SinhOp: widened(torch.sinh),
    math.SqrtOp: widened(torch.sqrt),
    math.TanOp: widened(torch.tan),
    math.TanhOp: widened(torch.tanh),
    math.TruncOp: widened(torch.trunc),
}

CASTS: dict[type[Operation], Function] = {
    arith.BitcastOp: bitcast,
    arith.ExtFOp: convert,
    arith.TruncFOp: convert,
    arith.FPToSIOp: to_integer,
    arith.FPToUIOp: to_integer_unsigned,
    arith.SIToFPOp: to_float,
    arith.UIToFPOp: to_float_unsigned,
    arith.ExtSIOp: extend,
    arith.ExtUIOp: extend_unsigned,
    arith.TruncIOp: truncate,
    arith.IndexCastOp: extend,
}
"""Functions of a value and the dtype of the result."""


def _pointwise(function: Function) -> Callable[..., OpImplResult]:
    def run(_ft: Any, _interpreter: Any, _op: Any, args: PythonValues) -> OpImplResult:
        return OpImplResult((function(*args),), None)

    return run


def _cast(function: Function) -> Callable[..., OpImplResult]:
    def run(_ft: Any, _interpreter: Any, op: Any, args: PythonValues) -> OpImplResult:
        return OpImplResult((function(args[0], dtype_of(op.results[0].type)),), None)

    return run


_TABLE = {op: _pointwise(f) for op, f in (INTEGER | FLOAT).items()}
_TABLE[tile.TanhApproxOp] = _pointwise(torch.tanh)
_TABLE[tile.WidenOp] = _pointwise(torch.Tensor.float)
_TABLE[tile.WidenBytesOp] = _cast(convert)
_TABLE |= {op: _cast(f) for op, f in CASTS.items()}


@register_impls
class ScalarFunctions(InterpreterFunctions):
    """The interpreter of all scalar ops, those of the tables above among them."""

    def __init__(self, device: torch.device | None = None):
        """Create an interpreter that makes constants on `device`.

        Constants are filled in on the device, since a copy from the host would wait for
        the device.
        """
        self.device = device
        # The programs of a kernel use the same constants many times.
        self.constants: dict[arith.ConstantOp, Tensor] = {}

    def number(self, value: float, kind: Attribute) -> Tensor:
        """Return a number of a type on the device of this code."""
        return torch.full((), value, dtype=dtype_of(kind), device=self.device)

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
            value = self.number(constant(op), op.result.type)
            self.constants[op] = value
        elif self.device is not None and (tape := recorder()) is not None:
            tape.hold(value)
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
        return (compare(op.predicate.value.data, *args),)

    @impl(arith.CmpfOp)
    def run_cmpf(
        self, interpreter: Interpreter, op: arith.CmpfOp, args: PythonValues
    ) -> PythonValues:
        return (CMPF[op.predicate.value.data](*args),)

    @impl(flex.LoadCaptureOp)
    def run_load_capture(
        self, interpreter: Interpreter, op: flex.LoadCaptureOp, args: PythonValues
    ) -> PythonValues:
        if op.inside is not None and not in_range(args[0], args[1:]).all():
            raise InterpretationError("a captured load without a guard is out of range")
        # Differentiating code passes wider tensors.
        value = load_capture(args[0], args[1:])
        return (value.to(dtype_of(op.result.type)),)

    @impl(flex.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: flex.DimOp, args: PythonValues
    ) -> PythonValues:
        return (self.number(args[0].shape[op.dim.value.data], op.result.type),)

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
    """Return a maximum or minimum.

    If both operands are equal, the op decides which operand has the derivative.
    """
    value = function(lhs, rhs)
    match ties_of(op):
        case Ties.LHS:
            return torch.where(lhs == rhs, lhs, value)
        case Ties.RHS:
            return torch.where(lhs == rhs, rhs, value)
        case Ties.HALVES:
            return value


def constant(op: arith.ConstantOp) -> float:
    """Return the value of a constant, signed if it is an integer."""
    for read in (float_constant, int_constant):
        if (value := read(op.result)) is not None:
            return value
    raise InterpretationError(f"expected a number as constant, got {op.value}")


def load_capture(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return `tensor[indices]`, or 0 where an index is out of range."""
    if not indices:
        return tensor
    wide = [i.to(torch.int64) for i in indices]
    valid = in_range(tensor, wide)
    if tensor.numel() == 0:
        return tensor.new_zeros(valid.shape)
    inside = [i.clamp(0, n - 1) for i, n in zip(wide, tensor.shape, strict=True)]
    # Python's `tensor[i]` would read an index without dimensions on the host.
    value = torch.ops.aten.index.Tensor(tensor, inside)
    return torch.where(valid, value, tensor.new_zeros(()))


def in_range(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return where all indices are in range."""
    valid = torch.ones((), dtype=torch.bool, device=tensor.device)
    for index, size in zip(indices, tensor.shape, strict=True):
        valid = valid & (index >= 0) & (index < size)
    return valid


@register_impls
class ControlFunctions(InterpreterFunctions):
    """The interpreter of functions, loops and conditions."""

    @impl(scf.ForOp)
    def run_for(
        self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues
    ) -> PythonValues:
        begin, end, step = (int(a) for a in args[:3])
        carried = tuple(args[3:])
        dtype = dtype_of(op.body.block.args[0].type)
        for i in range(begin, end, step):
            index = torch.tensor(i, dtype=dtype, device="cpu")
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


def call_function(
    interpreter: Interpreter, op: func.FuncOp, args: Sequence[object]
) -> list[Tensor]:
    """Run a function on tensors and Python numbers, checked against its types."""
    if len(args) != len(op.args):
        raise InterpretationError(f"expected {len(op.args)} arguments, got {len(args)}")
    values = [as_value(a, arg.type) for a, arg in zip(args, op.args, strict=True)]
    return list(interpreter.call_op(op, tuple(values)))
