"""Print scalar code as Python expressions, for users and for headers of kernels.

Ops that the compiler inserted are left out: casts of one kind of number, clamps to a
type's range, and the wrapping of negative indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i1, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import yielded
from flexc.passes.scalar.predicates import OPERATORS, predicate_of
from flexc.passes.scalar.ranges.exact_ranges import chosen_sum, is_same
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.ranges.value_ranges import width_of

INFIX: dict[type[Operation], str] = {
    arith.AddiOp: "+",
    arith.SubiOp: "-",
    arith.MuliOp: "*",
    arith.DivSIOp: "//",
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


def constant(op: arith.ConstantOp) -> str:
    """Return the literal of a constant."""
    if isinstance(op.value, IntegerAttr):
        value = op.value.value.data
        return str(bool(value)).lower() if op.value.type == i1 else str(value)
    return f"{op.value.value.data:g}" if isinstance(op.value, FloatAttr) else "?"


def infix(op: Operation) -> str | None:
    """Return the operator of an op that is written between its operands, else None."""
    if isinstance(op, arith.CmpiOp | arith.CmpfOp):
        return OPERATORS.get(predicate_of(op)[-2:])
    return INFIX.get(type(op))


FUNCTIONS: dict[type[Operation], str] = {
    arith.MinSIOp: "min",
    arith.MaxSIOp: "max",
    arith.MinimumfOp: "min",
    arith.MaximumfOp: "max",
    math_dialect.AbsIOp: "abs",
    math_dialect.AbsFOp: "abs",
    math_dialect.PowFOp: "pow",
    arith.SIToFPOp: "float",
    arith.UIToFPOp: "float",
    arith.FPToSIOp: "int",
    arith.FPToUIOp: "int",
    arith.SelectOp: "where",
}
"""The functions of Python and torch that ops compute, where the names differ."""

OMITTED_CASTS = (
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.ExtFOp,
    arith.TruncFOp,
)

ARITHMETIC = (
    arith.AddiOp,
    arith.SubiOp,
    arith.MuliOp,
    arith.DivSIOp,
    arith.FloorDivSIOp,
    arith.RemSIOp,
    arith.ShLIOp,
    arith.ShRSIOp,
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.DivfOp,
)
"""Operations that need no parentheses as operands of a comparison."""

LIMITS = full(width_of(i32))


def describe(region: Region) -> str:
    """Return the yielded values of a region as expressions of its arguments."""
    return ", ".join(map(spell, yielded(region.block)))


def spell(value: SSAValue, names: Mapping[SSAValue, str] | None = None) -> str:
    """Return a value as an expression of its region's arguments.

    Values in `names` are printed as the names there.
    """
    return Speller(names).spell(value, outer=True)


class Speller:
    """A printer of expressions that prints the values in `names` by name.

    Beyond `left` values, it prints "...".
    """

    most: ClassVar[int] = 60
    """The values after which an expression is cut. A value that is used twice is
    spelled and counted twice.
    """

    def __init__(self, names: Mapping[SSAValue, str] | None = None):
        self.left = self.most
        self.names = names or {}

    def spell(self, value: SSAValue, outer: bool = False) -> str:
        """Return a value's expression, in parentheses unless it stands alone."""
        value = meant(value)
        if value in self.names:
            return self.names[value]
        self.left -= 1
        if self.left < 0:
            return "..."
        owner = value.owner
        if isinstance(owner, Block):
            return value.name_hint or "?"
        if isinstance(owner, arith.ConstantOp):
            return constant(owner)
        text = self.infix(owner)
        if text is None:
            return self.call(owner)
        return text if outer else f"({text})"

    def infix(self, op: Operation) -> str | None:
        """Return the text of an op that is written by operators, else None."""
        match op:
            case arith.CmpiOp() | arith.CmpfOp() if (name := infix(op)) is not None:
                return f"{self.side(op.lhs)} {name} {self.side(op.rhs)}"
            case arith.XOrIOp() if op.lhs.type == i1 and int_constant(op.rhs) == -1:
                return f"not {self.spell(op.lhs)}"
            case arith.NegfOp():
                return f"-{self.spell(op.operand)}"
            case arith.ShRSIOp() if (by := int_constant(op.rhs)) is not None:
                return f"{self.spell(op.lhs)} // {1 << by}"
            case arith.ShLIOp() if (by := int_constant(op.rhs)) is not None:
                return f"{self.spell(op.lhs)} * {1 << by}"
            case arith.SelectOp() if (rest := python_remainder(op)) is not None:
                return f"{self.spell(rest.lhs)} % {self.spell(rest.rhs)}"
            case _:
                name = infix(op)
        if name is None:
            return None
        left, right = (self.spell(v) for v in op.operands[:2])
        return f"{left} {name} {right}"

    def side(self, value: SSAValue) -> str:
        """Return one side of a comparison."""
        op = meant(value).owner
        is_remainder = isinstance(op, arith.SelectOp) and python_remainder(op)
        return self.spell(value, isinstance(op, ARITHMETIC) or bool(is_remainder))

    def call(self, op: Operation) -> str:
        """Return the text of an op that is written as a call or an index."""
        if isinstance(op, flex.LoadCaptureOp) and not op.indices:
            return self.spell(op.tensor)
        args = [self.spell(v, outer=True) for v in op.operands]
        if isinstance(op, flex.LoadCaptureOp):
            return f"{args[0]}[{', '.join(args[1:])}]"
        if isinstance(op, flex.DimOp):
            return f"{args[0]}.size({op.dim.value.data})"
        name = FUNCTIONS.get(type(op), op.name.split(".")[-1])
        return f"{name}({', '.join(args)})"


def meant(value: SSAValue) -> SSAValue:
    """Return the value before casts, clamps and index wrapping."""
    while (inner := _inner(value.owner)) is not None:
        value = inner
    return value


def _inner(op: Operation | Block) -> SSAValue | None:
    match op:
        case Operation() if isinstance(op, OMITTED_CASTS):
            return op.operands[0]
        case arith.MaxSIOp() if int_constant(op.rhs) == LIMITS.lo:
            return op.lhs
        case arith.MinSIOp() if int_constant(op.rhs) == LIMITS.hi:
            return op.lhs
        case arith.SelectOp() if (found := chosen_sum(op.result)) is not None:
            _, x, n = found
            return x if isinstance(meant(n).owner, flex.DimOp) else None
        case _:
            return None


def python_remainder(op: arith.SelectOp) -> arith.RemSIOp | None:
    """Return r of `select(test, r + c, r)`, where r is the remainder by c, else None.

    `mended_remainder` is for proofs. Here, any test does, and casts are left out.
    """
    match chosen_sum(op.result):
        case (_, SSAValue(owner=arith.RemSIOp() as rest), n):
            return rest if is_same(meant(n), meant(rest.rhs)) else None
        case _:
            return None
