"""Print a region of scalar code as one readable line.

Headers of emitted source contain such lines: `score + slopes[h] * f32(kv_idx - q_idx)`.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i1
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects import flex

MAX_VALUES = 40
"""The number of values after which a description is cut. A value that is used twice is
spelled and counted twice.
"""

INFIX: dict[type[Operation], str] = {
    arith.AddiOp: "+",
    arith.SubiOp: "-",
    arith.MuliOp: "*",
    arith.DivSIOp: "/",
    arith.FloorDivSIOp: "//",
    arith.RemSIOp: "%",
    arith.AndIOp: "&",
    arith.OrIOp: "|",
    arith.XOrIOp: "^",
    arith.ShLIOp: "<<",
    arith.ShRSIOp: ">>",
    arith.AddfOp: "+",
    arith.SubfOp: "-",
    arith.MulfOp: "*",
    arith.DivfOp: "/",
}

CASTS = (
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
    arith.ExtFOp,
    arith.TruncFOp,
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
)

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def describe(region: Region) -> str:
    """Return the yielded values of a region as expressions of its arguments."""
    last = region.block.last_op
    assert isinstance(last, flex.YieldOp)
    speller = Speller()
    return ", ".join(speller.spell(value, outer=True) for value in last.values)


def spell(value: SSAValue) -> str:
    """Return a value as an expression of its region's arguments."""
    return Speller().spell(value, outer=True)


class Speller:
    """A printer of values as expressions, which prints "..." beyond `left` values."""

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def spell(self, value: SSAValue, outer: bool = False) -> str:
        self.left -= 1
        if self.left < 0:
            return "..."
        owner = value.owner
        if isinstance(owner, Block):
            return value.name_hint or "?"
        if isinstance(owner, arith.ConstantOp):
            return constant(owner)
        operator = infix(owner)
        if operator is None:
            return self.call(owner)
        left, right = (self.spell(v) for v in owner.operands[:2])
        text = f"{left} {operator} {right}"
        return text if outer else f"({text})"

    def call(self, op: Operation) -> str:
        args = [self.spell(v, outer=True) for v in op.operands]
        if isinstance(op, flex.LoadCaptureOp):
            return f"{args[0]}[{', '.join(args[1:])}]"
        if isinstance(op, flex.DimOp):
            return f"{args[0]}.size({op.dim.value.data})"
        if isinstance(op, CASTS):
            return f"{op.results[0].type}({args[0]})"
        name = "where" if isinstance(op, arith.SelectOp) else op.name.split(".")[-1]
        return f"{name}({', '.join(args)})"


def constant(op: arith.ConstantOp) -> str:
    """Return the literal of a constant."""
    if isinstance(op.value, IntegerAttr):
        value = op.value.value.data
        return str(bool(value)).lower() if op.value.type == i1 else str(value)
    return f"{op.value.value.data:g}" if isinstance(op.value, FloatAttr) else "?"


def infix(op: Operation) -> str | None:
    """Return the operator of an op that is written between its operands, else None."""
    if isinstance(op, arith.CmpiOp):
        name = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    elif isinstance(op, arith.CmpfOp):
        name = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
    else:
        return INFIX.get(type(op))
    return COMPARISONS.get(name[-2:])
