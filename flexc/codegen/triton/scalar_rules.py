"""Rules that spell scalar `arith`, `math` and `flex` ops in Triton and in Gluon.

Each rule turns the texts of an op's operands into an expression. The same text serves
numbers, values per row or column, and full tiles: Triton broadcasts.
`legalize-tile-for-triton` and `tile-expand-math` leave no other scalar op. Gluon has
the same functions as Triton, in a module of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    FloatAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
    bf16,
    f32,
    i1,
    i32,
)
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.errors import UnsupportedOpError
from flexc.passes.scalar.predicates import OPERATORS, predicate_of

DTYPES = {
    "i1": "int1",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8E4M3FN": "float8e4nv",
    "f8E5M2": "float8e5",
}


def literal(attr: Attribute) -> str:
    """Return the text of a constant.

    Next to a value, Triton gives a literal that value's type.
    """
    if isa(attr, IntegerAttr):
        value = attr.value.data
        return str(bool(value)) if attr.type == i1 else str(value)
    assert isinstance(attr, FloatAttr)
    value = attr.value.data
    return repr(value) if math.isfinite(value) else f'float("{value}")'


@dataclass(frozen=True)
class Language:
    """A language's module of functions, and its name in emitted source."""

    name: str
    module: str

    def dtype(self, type_: Attribute) -> str:
        """Return the text of an element type's dtype."""
        return f"{self.module}.{DTYPES[str(type_)]}"

    def call(self, function: str, *args: str) -> str:
        return f"{self.module}.{function}({', '.join(args)})"

    def unsigned(self, type_: Attribute, text: str) -> str:
        """Return `text` as an unsigned integer of equal width; i1 is unsigned."""
        if type_ == i1:
            return text
        name = self.dtype(type_).replace("int", "uint")
        if text.lstrip("-").isdigit():
            # A literal has 32 bits, and a bitcast cannot change the width.
            assert isa(type_, IntegerType)
            value = int(text) % (1 << type_.width.data)
            return self.call("full", "[]", str(value), name)
        return self.call("cast", text, name, "bitcast=True")

    def typed_literal(self, attr: Attribute, shape: list[int], *extra: str) -> str:
        """Return a constant tile of the attribute's own dtype, for use by itself."""
        assert isa(attr, IntegerAttr | FloatAttr)
        dtype = self.dtype(attr.type)
        return self.call("full", str(shape), literal(attr), dtype, *extra)


TRITON = Language("Triton", "tl")
GLUON = Language("Gluon", "gl")

Rule = Callable[[Language, Operation, list[str]], str]


def infix(operator: str) -> Rule:
    return lambda _, op, args: f"{args[0]} {operator} {args[1]}"


def call(function: str, *extra: str) -> Rule:
    """Return a rule that calls a function of the language's module."""
    return lambda lang, op, args: lang.call(function, *args, *extra)


def select(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a select.

    Two literals would give i32 or f32, so the first gets the op's type.
    """
    assert isinstance(op, arith.SelectOp)
    owners = (op.lhs.owner, op.rhs.owner)
    if all(isinstance(o, arith.ConstantOp) for o in owners):
        first = owners[0]
        assert isinstance(first, arith.ConstantOp)
        args = [args[0], lang.typed_literal(first.value, []), args[2]]
    return lang.call("where", *args)


def divide(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a division; f32 needs `div_rn`, as Triton's `/` is off by up to 2 ulp."""
    assert isinstance(op, arith.DivfOp)
    approximate = FastMathFlag.APPROX_FUNC in op.fastmath.data
    if op.result.type == f32 and not approximate:
        return lang.call("div_rn", *args)
    return f"{args[0]} / {args[1]}"


def unsigned_infix(operator: str) -> Rule:
    """Return a rule for an operator on unsigned integers with a signed result."""

    def rule(lang: Language, op: Operation, args: list[str]) -> str:
        type_ = op.operands[0].type
        left, right = (lang.unsigned(type_, a) for a in args)
        result = op.results[0].type
        text = f"{left} {operator} {right}"
        if result == i1:
            return text
        return lang.call("cast", text, lang.dtype(result), "bitcast=True")

    return rule


def cast(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a cast as a function: Triton's interpreter has numbers without methods."""
    return lang.call("cast", args[0], lang.dtype(op.results[0].type))


def signed_cast(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a signed cast: in MLIR a set bit is -1; Triton extends i1 with zeros."""
    if op.operands[0].type == i1:
        args = ["-" + lang.call("cast", args[0], lang.dtype(i32))]
    return cast(lang, op, args)


def unsigned_cast(lang: Language, op: Operation, args: list[str]) -> str:
    return cast(lang, op, [lang.unsigned(op.operands[0].type, args[0])])


def truncate(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a truncation to the low bits: Triton's cast to i1 would test for zero."""
    return f"({args[0]} & 1) != 0" if op.results[0].type == i1 else cast(lang, op, args)


def float_to_int(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a cast towards zero: Triton's cast to i1 would turn 0.5 into true."""
    if op.results[0].type == i1:
        return lang.call("cast", args[0], lang.dtype(i32)) + " != 0"
    return cast(lang, op, args)


def bitcast(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a bitcast; a literal, which has 32 bits, first gets the operand's type."""
    text, into = args[0], lang.dtype(op.results[0].type)
    if not text.split("[")[0].isidentifier():
        text = lang.call("full", "[]", text, lang.dtype(op.operands[0].type))
    return lang.call("cast", text, into, "bitcast=True")


def negate(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a negation; Triton's `-x` is 0 - x, which gives +0.0 for +0.0."""
    return f"{args[0]} * -1.0"


def compare_int(lang: Language, op: Operation, args: list[str]) -> str:
    assert isinstance(op, arith.CmpiOp)
    predicate = predicate_of(op)
    if predicate in OPERATORS:
        return f"{args[0]} {OPERATORS[predicate]} {args[1]}"
    operator = OPERATORS[predicate[1:]]
    if predicate[0] == "u":
        args = [lang.unsigned(op.lhs.type, a) for a in args]
    elif op.lhs.type == i1:
        # In MLIR a set bit is -1, in Triton 1, so that the order is reversed.
        args = args[::-1]
    return f"{args[0]} {operator} {args[1]}"


def compare_float(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a comparison of floats; Python's comparisons are ordered, except `!=`."""
    assert isinstance(op, arith.CmpfOp)
    predicate = predicate_of(op)
    a, b = args
    is_nan = f"({a} != {a}) | ({b} != {b})"
    match predicate:
        case "false" | "true":
            return (
                f"({a} != {a}) & ({a} == {a})"
                if predicate == "false"
                else f"({a} != {a}) | ({a} == {a})"
            )
        case "ord":
            return f"({a} == {a}) & ({b} == {b})"
        case "uno":
            return is_nan
        case "une":
            return f"{a} != {b}"
        case "one":
            return f"({a} < {b}) | ({a} > {b})"
        case _:
            ordered = f"{a} {OPERATORS[predicate[1:]]} {b}"
            return ordered if predicate[0] == "o" else f"({ordered}) | {is_nan}"


def in_place_function(op: tile.ReadOp) -> str:
    """Return the name of the support function that reads a tensor's elements."""
    assert isa(op.tensor.type, TensorType[Attribute])
    guarded = "" if op.valid is None else "_if"
    return f"read_{op.tensor.type.element_type}{guarded}"


def read(lang: Language, op: Operation, args: list[str]) -> str:
    """Spell a read of a tensor's element; booleans are stored as bytes."""
    assert isinstance(op, tile.ReadOp)
    if "in_place" in op.attributes:
        guard = "" if op.valid is None else f", {args[2]}"
        return f"{in_place_function(op)}({args[0]} + {args[1]}{guard})"
    pointer = f"{args[0]} + {args[1]}"
    guard = f", mask={args[2]}, other=0" if op.valid is not None else ""
    text = lang.call("load", pointer + guard)
    return f"{text} != 0" if op.result.type == i1 else text


def widening_functions(op: tile.WidenBytesOp) -> list[str]:
    """Return the names of the support functions that convert numbers of 8 bits."""
    rest = ["halves_to_bf16"] if op.result.type == bf16 else []
    return [f"widen_{str(op.operand.type).lower()}", *rest]


def widen_bytes(lang: Language, op: Operation, args: list[str]) -> str:
    assert isinstance(op, tile.WidenBytesOp)
    (value,), staged = args, op.staged is not None
    for name in widening_functions(op):
        value = f"{name}({value}, {staged})"
    return value


NAN = "propagate_nan=tl.PropagateNan.ALL"
"""Triton's enumeration, for which Gluon has no name."""

RULES: dict[type[Operation], Rule] = {
    arith.AddiOp: infix("+"),
    arith.SubiOp: infix("-"),
    arith.MuliOp: infix("*"),
    arith.DivSIOp: infix("//"),
    arith.RemSIOp: infix("%"),
    arith.DivUIOp: unsigned_infix("//"),
    arith.RemUIOp: unsigned_infix("%"),
    arith.AndIOp: infix("&"),
    arith.OrIOp: infix("|"),
    arith.XOrIOp: infix("^"),
    arith.ShLIOp: infix("<<"),
    arith.ShRSIOp: infix(">>"),
    arith.ShRUIOp: unsigned_infix(">>"),
    arith.MinSIOp: call("minimum"),
    arith.MaxSIOp: call("maximum"),
    arith.CmpiOp: compare_int,
    arith.CmpfOp: compare_float,
    arith.SelectOp: select,
    arith.AddfOp: infix("+"),
    arith.SubfOp: infix("-"),
    arith.MulfOp: infix("*"),
    arith.DivfOp: divide,
    arith.NegfOp: negate,
    arith.MaximumfOp: call("maximum", NAN),
    arith.MinimumfOp: call("minimum", NAN),
    arith.MaxnumfOp: call("maximum"),
    arith.MinnumfOp: call("minimum"),
    arith.BitcastOp: bitcast,
    arith.SIToFPOp: signed_cast,
    arith.UIToFPOp: unsigned_cast,
    arith.FPToSIOp: float_to_int,
    arith.ExtFOp: cast,
    arith.TruncFOp: cast,
    arith.TruncIOp: truncate,
    arith.ExtSIOp: signed_cast,
    arith.ExtUIOp: unsigned_cast,
    math_dialect.AbsFOp: call("abs"),
    math_dialect.AbsIOp: call("abs"),
    math_dialect.CeilOp: call("ceil"),
    math_dialect.CosOp: call("cos"),
    math_dialect.ErfOp: call("erf"),
    math_dialect.Exp2Op: call("exp2"),
    math_dialect.ExpOp: call("exp"),
    math_dialect.FloorOp: call("floor"),
    math_dialect.FmaOp: call("fma"),
    math_dialect.Log2Op: call("log2"),
    math_dialect.LogOp: call("log"),
    math_dialect.RsqrtOp: call("rsqrt"),
    math_dialect.SinOp: call("sin"),
    math_dialect.SqrtOp: call("sqrt"),
    tile.ReadOp: read,
    tile.TanhApproxOp: lambda _, op, args: f"tanh_approx({args[0]})",
    tile.WidenOp: lambda _, op, args: f"widen({args[0]})",
    tile.WidenBytesOp: widen_bytes,
}


def expression(lang: Language, op: Operation, args: list[str]) -> str:
    """Return the text of a scalar op.

    Raise `UnsupportedOpError` for an op without a rule.
    """
    rule = RULES.get(type(op))
    if rule is None:
        raise UnsupportedOpError(
            f"{op.name} is not lowered for {lang.name}: run -p "
            f"flexc-to-{lang.name.lower()} first"
        )
    return rule(lang, op, args)
