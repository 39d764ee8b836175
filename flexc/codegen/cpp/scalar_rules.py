"""Rules that spell scalar ops as C++ expressions: one row for each op.

A rule takes the op and the texts of its operands. Each expression becomes one
statement, `const T name = expression;`, so that rules ignore precedence. The same
expression computes vectors if operands are vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import BFloat16Type, Float16Type, TensorType, i1
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from flexc.codegen.cpp.spelling import from_memory, scalar_type
from flexc.dialects import flex, tile

Rule = Callable[[Operation, list[str]], str]


def infix(symbol: str) -> Rule:
    return lambda op, args: f"{args[0]} {symbol} {args[1]}"


def call(function: str) -> Rule:
    return lambda op, args: f"{function}({', '.join(args)})"


def _approximate(function: str) -> Rule:
    """Return a rule for a function that has a nearly exact form."""

    def rule(op: Operation, args: list[str]) -> str:
        assert isinstance(op, math.Exp2Op | math.TanhOp)
        is_near = FastMathFlag.APPROX_FUNC in op.fastmath.data
        return call(f"near_{function}" if is_near else function)(op, args)

    return rule


def _wrapping(symbol: str, bit: str) -> Rule:
    """Return a rule for integer arithmetic that wraps around, also for a single bit."""

    def rule(op: Operation, args: list[str]) -> str:
        if op.results[0].type == i1:
            return f"{args[0]} {bit} {args[1]}"
        return f"{args[0]} {symbol} {args[1]}"

    return rule


def _negate(op: Operation, args: list[str]) -> str:
    return f"-{args[0]}" if args[0].isidentifier() else f"-({args[0]})"


def _cast(op: Operation, args: list[str]) -> str:
    return f"convert<{scalar_type(op.results[0].type)}>({args[0]})"


def _signed_cast(op: Operation, args: list[str]) -> str:
    """Spell a signed cast, in which a set bit of i1 means -1."""
    is_bit = op.operands[0].type == i1
    return _cast(op, [f"minus_one_if({args[0]})"] if is_bit else args)


def _unsigned_cast(op: Operation, args: list[str]) -> str:
    is_bit = op.operands[0].type == i1
    return _cast(op, [f"{'one_if' if is_bit else 'to_unsigned'}({args[0]})"])


def _truncate(op: Operation, args: list[str]) -> str:
    """Spell a truncation to the low bits: a cast to bool would test for zero."""
    return f"({args[0]} & 1) != 0" if op.results[0].type == i1 else _cast(op, args)


def _is_narrow(type_: Attribute) -> bool:
    return isinstance(type_, BFloat16Type | Float16Type)


def _widened(rule: Rule) -> Rule:
    """Return a rule that computes 16-bit floats in 32 bits and rounds the result."""

    def widened(op: Operation, args: list[str]) -> str:
        args = [
            f"convert<float>({a})" if _is_narrow(v.type) else a
            for a, v in zip(args, op.operands, strict=True)
        ]
        text, type_ = rule(op, args), op.results[0].type
        return f"convert<{scalar_type(type_)}>({text})" if _is_narrow(type_) else text

    return widened


def _to_integer(function: str) -> Rule:
    return lambda op, args: f"{function}<{scalar_type(op.results[0].type)}>({args[0]})"


def _bitcast(op: Operation, args: list[str]) -> str:
    return f"bits<{scalar_type(op.results[0].type)}>({args[0]})"


_CMPI = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
_FIRST_UNSIGNED = 6
# A single bit that is set means -1 to signed comparisons.
_CMPI_BITS = (
    "{0} == {1}",
    "{0} != {1}",
    "{0} & !{1}",
    "{0} | !{1}",
    "!{0} & {1}",
    "!{0} | {1}",
    "!{0} & {1}",
    "!{0} | {1}",
    "{0} & !{1}",
    "{0} | !{1}",
)


def _cmpi(op: Operation, args: list[str]) -> str:
    assert isinstance(op, arith.CmpiOp)
    predicate = op.predicate.value.data
    if op.lhs.type == i1:
        return _CMPI_BITS[predicate].format(*args)
    if predicate >= _FIRST_UNSIGNED:
        args = [f"to_unsigned({a})" for a in args]
    return f"{args[0]} {_CMPI[predicate]} {args[1]}"


# Indexed by predicate. o.. is false, and u.. true, if an operand is NaN. `one` and
# `ueq` are explicit; | keeps them free of branches.
_CMPF = (
    "false",
    "{0} == {1}",
    "{0} > {1}",
    "{0} >= {1}",
    "{0} < {1}",
    "{0} <= {1}",
    "({0} < {1}) | ({0} > {1})",
    "({0} == {0}) & ({1} == {1})",
    "!(({0} < {1}) | ({0} > {1}))",
    "!({0} <= {1})",
    "!({0} < {1})",
    "!({0} >= {1})",
    "!({0} > {1})",
    "{0} != {1}",
    "({0} != {0}) | ({1} != {1})",
    "true",
)


def _cmpf(op: Operation, args: list[str]) -> str:
    assert isinstance(op, arith.CmpfOp)
    return _CMPF[op.predicate.value.data].format(*args)


def _read(op: Operation, args: list[str]) -> str:
    """Spell a read; an extra argument is the number of lanes that exist."""
    assert isinstance(op, tile.ReadOp)
    assert isa(op.tensor.type, TensorType[Attribute])
    function = "read"
    if op.valid is not None:
        function, args = "read_if", [args[2], *args[:2], *args[3:]]
    element = f"{function}({', '.join(args)})"
    if op.result.type != op.tensor.type.element_type:
        return _cast(op, [element])
    return from_memory(op.result.type, element)


def _integer_power(op: Operation, args: list[str]) -> str:
    type_ = op.results[0].type
    exponent = "float" if _is_narrow(type_) else scalar_type(type_)
    return f"pow({args[0]}, convert<{exponent}>({args[1]}))"


_RULES: dict[type[Operation], Rule] = {
    arith.AddiOp: _wrapping("+", "^"),
    arith.SubiOp: _wrapping("-", "^"),
    arith.MuliOp: _wrapping("*", "&"),
    arith.DivSIOp: call("divsi"),
    arith.DivUIOp: call("divui"),
    arith.FloorDivSIOp: call("floordivsi"),
    arith.CeilDivSIOp: call("ceildivsi"),
    arith.CeilDivUIOp: call("ceildivui"),
    arith.RemSIOp: call("remsi"),
    arith.RemUIOp: call("remui"),
    arith.MinSIOp: call("min"),
    arith.MaxSIOp: call("max"),
    arith.MinUIOp: call("minui"),
    arith.MaxUIOp: call("maxui"),
    arith.AndIOp: infix("&"),
    arith.OrIOp: infix("|"),
    arith.XOrIOp: infix("^"),
    arith.ShLIOp: call("shli"),
    arith.ShRUIOp: call("shrui"),
    arith.ShRSIOp: call("shrsi"),
    arith.AddfOp: infix("+"),
    arith.SubfOp: infix("-"),
    arith.MulfOp: infix("*"),
    arith.DivfOp: infix("/"),
    arith.NegfOp: _negate,
    arith.MinimumfOp: call("minimumf"),
    arith.MaximumfOp: call("maximumf"),
    arith.MinnumfOp: call("minnumf"),
    arith.MaxnumfOp: call("maxnumf"),
    arith.CmpiOp: _cmpi,
    arith.CmpfOp: _cmpf,
    arith.SelectOp: call("select"),
    arith.BitcastOp: _bitcast,
    arith.IndexCastOp: _cast,
    arith.ExtFOp: _cast,
    arith.TruncFOp: _cast,
    arith.ExtSIOp: _signed_cast,
    arith.ExtUIOp: _unsigned_cast,
    arith.TruncIOp: _truncate,
    arith.SIToFPOp: _signed_cast,
    arith.UIToFPOp: _unsigned_cast,
    arith.FPToSIOp: _to_integer("fptosi"),
    arith.FPToUIOp: _to_integer("fptoui"),
    math.AbsFOp: call("absf"),
    math.AbsIOp: call("absi"),
    math.AcosOp: call("acos"),
    math.AcoshOp: call("acosh"),
    math.AsinOp: call("asin"),
    math.AsinhOp: call("asinh"),
    math.AtanOp: call("atan"),
    math.Atan2Op: call("atan2"),
    math.AtanhOp: call("atanh"),
    math.CbrtOp: call("cbrt"),
    math.CeilOp: call("ceil"),
    math.CopySignOp: call("copysign"),
    math.CosOp: call("cos"),
    math.CoshOp: call("cosh"),
    math.ErfOp: call("erf"),
    math.ExpOp: call("exp"),
    math.Exp2Op: _approximate("exp2"),
    math.ExpM1Op: call("expm1"),
    math.FPowIOp: _integer_power,
    math.FloorOp: call("floor"),
    math.FmaOp: call("fma"),
    math.LogOp: call("log"),
    math.Log10Op: call("log10"),
    math.Log1pOp: call("log1p"),
    math.Log2Op: call("log2"),
    math.PowFOp: call("pow"),
    math.RoundOp: call("round"),
    math.RoundEvenOp: call("roundeven"),
    math.RsqrtOp: call("rsqrt"),
    math.SinOp: call("sin"),
    math.SinhOp: call("sinh"),
    math.SqrtOp: call("sqrt"),
    math.TanOp: call("tan"),
    math.TanhOp: _approximate("tanh"),
    math.TruncOp: call("trunc"),
    flex.FmodOp: call("fmod"),
    tile.ReadOp: _read,
}

_EXACT = (arith.SelectOp, arith.BitcastOp, arith.ExtFOp, arith.TruncFOp, tile.ReadOp)
"""Ops that need no widening of 16-bit floats."""

SCALAR_RULES: dict[type[Operation], Rule] = {
    op: rule if op in _EXACT else _widened(rule) for op, rule in _RULES.items()
}
