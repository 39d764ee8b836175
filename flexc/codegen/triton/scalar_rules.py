"""How scalar `arith`, `math` and `flex` ops are spelled in Triton.

Each rule turns the texts of an op's operands into an expression. The same text
serves numbers, values per row or column and full tiles: Triton broadcasts.
`legalize-tile-for-triton` and `tile-expand-math` leave no other op.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    FloatAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
    f32,
    i1,
)
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.errors import UnsupportedOpError

DTYPES = {
    "i1": "tl.int1",
    "i8": "tl.int8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
}

Rule = Callable[[Operation, list[str]], str]


def dtype(type_: Attribute) -> str:
    """The Triton dtype of an element type."""
    return DTYPES[str(type_)]


def unsigned(type_: Attribute, text: str) -> str:
    """`text` read as an unsigned integer of the same width; i1 is one already."""
    if type_ == i1:
        return text
    name = dtype(type_).replace("int", "uint")
    if text.lstrip("-").isdigit():
        # A literal is 32 bits wide, and bits of another width cannot be read.
        assert isa(type_, IntegerType)
        return f"tl.full([], {int(text) % (1 << type_.width.data)}, {name})"
    return f"tl.cast({text}, {name}, bitcast=True)"


def literal(attr: Attribute) -> str:
    """A constant. Beside a value, Triton gives a literal that value's type."""
    if isa(attr, IntegerAttr):
        value = attr.value.data
        return str(bool(value)) if attr.type == i1 else str(value)
    assert isinstance(attr, FloatAttr)
    value = attr.value.data
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def typed_literal(attr: Attribute, shape: list[int]) -> str:
    """A constant that stands alone, of its own type."""
    assert isa(attr, IntegerAttr | FloatAttr)
    return f"tl.full({shape}, {literal(attr)}, {dtype(attr.type)})"


def infix(operator: str) -> Rule:
    return lambda op, args: f"{args[0]} {operator} {args[1]}"


def call(function: str, *extra: str) -> Rule:
    return lambda op, args: f"{function}({', '.join([*args, *extra])})"


def select(op: Operation, args: list[str]) -> str:
    """Two literals would be i32 or f32, whatever the op's type is."""
    assert isinstance(op, arith.SelectOp)
    owners = (op.lhs.owner, op.rhs.owner)
    if all(isinstance(o, arith.ConstantOp) for o in owners):
        first = owners[0]
        assert isinstance(first, arith.ConstantOp)
        args = [args[0], typed_literal(first.value, []), args[2]]
    return f"tl.where({', '.join(args)})"


def divide(op: Operation, args: list[str]) -> str:
    """Triton's `/` of f32 is off by up to 2 units in the last place."""
    assert isinstance(op, arith.DivfOp)
    approximate = FastMathFlag.APPROX_FUNC in op.fastmath.data
    if op.result.type == f32 and not approximate:
        return f"tl.div_rn({args[0]}, {args[1]})"
    return f"{args[0]} / {args[1]}"


def unsigned_infix(operator: str) -> Rule:
    """An operator on unsigned integers; integer results are read as signed again."""

    def rule(op: Operation, args: list[str]) -> str:
        type_ = op.operands[0].type
        left, right = (unsigned(type_, a) for a in args)
        result = op.results[0].type
        text = f"{left} {operator} {right}"
        return (
            text if result == i1 else f"tl.cast({text}, {dtype(result)}, bitcast=True)"
        )

    return rule


def cast(op: Operation, args: list[str]) -> str:
    """A function, not a method: in Triton's interpreter arguments are numbers."""
    return f"tl.cast({args[0]}, {dtype(op.results[0].type)})"


def signed_cast(op: Operation, args: list[str]) -> str:
    """Triton extends i1 with zeros; to MLIR a set bit is -1."""
    if op.operands[0].type == i1:
        args = [f"-tl.cast({args[0]}, tl.int32)"]
    return cast(op, args)


def unsigned_cast(op: Operation, args: list[str]) -> str:
    return cast(op, [unsigned(op.operands[0].type, args[0])])


def truncate(op: Operation, args: list[str]) -> str:
    """The low bits; Triton's cast to i1 would test for zero."""
    return f"({args[0]} & 1) != 0" if op.results[0].type == i1 else cast(op, args)


def float_to_int(op: Operation, args: list[str]) -> str:
    """Towards zero; Triton's cast to i1 would make true of 0.5."""
    is_bit = op.results[0].type == i1
    return f"tl.cast({args[0]}, tl.int32) != 0" if is_bit else cast(op, args)


def bitcast(op: Operation, args: list[str]) -> str:
    """A literal is 32 bits wide: one of another type is given its own first."""
    text, into = args[0], dtype(op.results[0].type)
    if not text.split("[")[0].isidentifier():
        text = f"tl.full([], {text}, {dtype(op.operands[0].type)})"
    return f"tl.cast({text}, {into}, bitcast=True)"


def negate(op: Operation, args: list[str]) -> str:
    """Triton's `-x` is 0 - x, which makes +0.0 of +0.0."""
    return f"{args[0]} * -1.0"


COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def compare_int(op: Operation, args: list[str]) -> str:
    assert isinstance(op, arith.CmpiOp)
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    if predicate in COMPARISONS:
        return f"{args[0]} {COMPARISONS[predicate]} {args[1]}"
    operator = COMPARISONS[predicate[1:]]
    if predicate[0] == "u":
        args = [unsigned(op.lhs.type, a) for a in args]
    elif op.lhs.type == i1:
        # To MLIR a set bit is -1, to Triton 1: the order is the opposite.
        args = args[::-1]
    return f"{args[0]} {operator} {args[1]}"


def compare_float(op: Operation, args: list[str]) -> str:
    """Python's comparisons are ordered, but for `!=`."""
    assert isinstance(op, arith.CmpfOp)
    predicate = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
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
            ordered = f"{a} {COMPARISONS[predicate[1:]]} {b}"
            return ordered if predicate[0] == "o" else f"({ordered}) | {is_nan}"


def in_place_function(op: tile.ReadOp) -> str:
    """The support function that reads elements of a tensor's type."""
    assert isa(op.tensor.type, TensorType[Attribute])
    guarded = "" if op.valid is None else "_if"
    return f"read_{op.tensor.type.element_type}{guarded}"


def read(op: Operation, args: list[str]) -> str:
    """An element of a tensor; booleans are stored as bytes."""
    assert isinstance(op, tile.ReadOp)
    if "in_place" in op.attributes:
        guard = "" if op.valid is None else f", {args[2]}"
        return f"{in_place_function(op)}({args[0]} + {args[1]}{guard})"
    pointer = f"{args[0]} + {args[1]}"
    guard = f", mask={args[2]}, other=0" if op.valid is not None else ""
    text = f"tl.load({pointer}{guard})"
    return f"{text} != 0" if op.result.type == i1 else text


NAN = "propagate_nan=tl.PropagateNan.ALL"

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
    arith.MinSIOp: call("tl.minimum"),
    arith.MaxSIOp: call("tl.maximum"),
    arith.CmpiOp: compare_int,
    arith.CmpfOp: compare_float,
    arith.SelectOp: select,
    arith.AddfOp: infix("+"),
    arith.SubfOp: infix("-"),
    arith.MulfOp: infix("*"),
    arith.DivfOp: divide,
    arith.NegfOp: negate,
    arith.MaximumfOp: call("tl.maximum", NAN),
    arith.MinimumfOp: call("tl.minimum", NAN),
    arith.MaxnumfOp: call("tl.maximum"),
    arith.MinnumfOp: call("tl.minimum"),
    arith.BitcastOp: bitcast,
    arith.SIToFPOp: signed_cast,
    arith.UIToFPOp: unsigned_cast,
    arith.FPToSIOp: float_to_int,
    arith.ExtFOp: cast,
    arith.TruncFOp: cast,
    arith.TruncIOp: truncate,
    arith.ExtSIOp: signed_cast,
    arith.ExtUIOp: unsigned_cast,
    math_dialect.AbsFOp: call("tl.abs"),
    math_dialect.AbsIOp: call("tl.abs"),
    math_dialect.CeilOp: call("tl.ceil"),
    math_dialect.CosOp: call("tl.cos"),
    math_dialect.ErfOp: call("tl.erf"),
    math_dialect.Exp2Op: call("tl.exp2"),
    math_dialect.ExpOp: call("tl.exp"),
    math_dialect.FloorOp: call("tl.floor"),
    math_dialect.FmaOp: call("tl.fma"),
    math_dialect.Log2Op: call("tl.log2"),
    math_dialect.LogOp: call("tl.log"),
    math_dialect.RsqrtOp: call("tl.rsqrt"),
    math_dialect.SinOp: call("tl.sin"),
    math_dialect.SqrtOp: call("tl.sqrt"),
    tile.ReadOp: read,
    tile.TanhApproxOp: call("tanh_approx"),
}


def expression(op: Operation, args: list[str]) -> str:
    """The text of a scalar op."""
    rule = RULES.get(type(op))
    if rule is None:
        raise UnsupportedOpError(
            f"the Triton backend has no spelling for {op.name}; this is a bug in "
            "flexc: tile-expand-math should have rewritten it"
        )
    return rule(op, args)
