"""Write scalar index arithmetic, for passes that build IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Protocol

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, IntegerType, i1, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import flex


class ScalarCode:
    """A builder that inserts `arith` ops at one place and returns their results."""

    def __init__(self, at: InsertPoint | Block):
        point = InsertPoint.at_end(at) if isinstance(at, Block) else at
        self.builder = Builder(point)

    def clone(self, ops: Sequence[Operation], values: dict[SSAValue, SSAValue]) -> None:
        """Insert clones of ops with mapped operands; map their results in `values`."""
        for op in ops:
            self.builder.insert(op.clone(values))

    def insert(self, op: Operation, name: str | None = None) -> SSAValue:
        """Insert an op that has one result, and return the result."""
        self.builder.insert(op)
        if name is not None:
            op.results[0].name_hint = name
        return op.results[0]

    def const(self, value: float, type_: Attribute = i32) -> SSAValue:
        if isa(type_, IntegerType):
            attr = IntegerAttr(int(value), type_)
        else:
            assert isinstance(type_, AnyFloat)
            attr = FloatAttr(value, type_)
        return self.insert(arith.ConstantOp(attr), None)

    def flag(self, value: bool) -> SSAValue:
        """Return a constant i1."""
        return self.const(-1 if value else 0, i1)

    def add(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.AddiOp(a, b), name)

    def sub(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.SubiOp(a, b), name)

    def mul(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MuliOp(a, b), name)

    def div(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        """Return a / b, rounded towards zero."""
        return self.insert(arith.DivSIOp(a, b), name)

    def rem(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        """Return the remainder of `div`, which has the sign of `a`."""
        return self.insert(arith.RemSIOp(a, b), name)

    def ceildiv(self, a: SSAValue, n: int, name: str | None = None) -> SSAValue:
        """Return ceil(a / n) for a >= 0 and a constant n > 0."""
        return self.div(self.add(a, self.const(n - 1)), self.const(n), name)

    def cmp(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.insert(arith.CmpiOp(a, b, predicate))

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.insert(arith.CmpfOp(a, b, predicate))

    def min(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MinSIOp(a, b), name)

    def max(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MaxSIOp(a, b), name)

    def and_(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.AndIOp(a, b), name)

    def or_(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.OrIOp(a, b), name)

    def xor(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.XOrIOp(a, b), name)

    def not_(self, a: SSAValue) -> SSAValue:
        """Return the negation of an i1."""
        return self.xor(a, self.flag(True))

    def select(
        self, c: SSAValue, a: SSAValue, b: SSAValue, name: str | None = None
    ) -> SSAValue:
        return self.insert(arith.SelectOp(c, a, b), name)

    def addf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.AddfOp(a, b), name)

    def subf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.SubfOp(a, b), name)

    def mulf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MulfOp(a, b), name)

    def divf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.DivfOp(a, b), name)

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """Return a * b + c, rounded once."""
        return self.insert(math_dialect.FmaOp(a, b, c))

    def minnumf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MinnumfOp(a, b), name)

    def maxnumf(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.MaxnumfOp(a, b), name)

    def negf(self, a: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(arith.NegfOp(a), name)

    def absf(self, a: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(math_dialect.AbsFOp(a), name)

    def exp(self, a: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(math_dialect.ExpOp(a), name)

    def exp2(self, a: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(math_dialect.Exp2Op(a), name)

    def log(self, a: SSAValue, name: str | None = None) -> SSAValue:
        return self.insert(math_dialect.LogOp(a), name)

    def int_cast(self, value: SSAValue, type_: IntegerType) -> SSAValue:
        """Return an integer, sign-extended or truncated to `type_`; an i1 is
        zero-extended.
        """
        assert isa(value.type, IntegerType)
        have, want = value.type.width.data, type_.width.data
        if have == want:
            return value
        if have > want:
            return self.insert(arith.TruncIOp(value, type_), value.name_hint)
        extend = arith.ExtUIOp if value.type == i1 else arith.ExtSIOp
        return self.insert(extend(value, type_), value.name_hint)

    def float_cast(self, value: SSAValue, type_: AnyFloat) -> SSAValue:
        """Return a float, extended or rounded to `type_`."""
        assert isinstance(value.type, AnyFloat)
        if value.type == type_:
            return value
        narrower = type_.bitwidth < value.type.bitwidth
        cast = arith.TruncFOp if narrower else arith.ExtFOp
        return self.insert(cast(value, type_), value.name_hint)

    def yield_(self, *values: SSAValue) -> None:
        self.builder.insert(flex.YieldOp(*values))


Combine = Callable[[SSAValue, SSAValue], SSAValue]
"""A function that writes the combination of two values, such as `ScalarCode.max`."""


def combined(combine: Combine, values: Sequence[SSAValue]) -> SSAValue | None:
    """Write the combination of values from the first on; return None for no values."""
    return reduce(combine, values) if values else None


def inline_region(
    region: Region,
    args: Sequence[SSAValue],
    code: ScalarCode,
    outside: ScalarCode | None = None,
    varying: Sequence[int] = (),
) -> list[SSAValue]:
    """Clone a scalar region's ops into `code`, and return the values that it yields.

    With `outside`, ops that depend on none of the `varying` arguments are cloned there.
    xDSL's loop-invariant code motion would leave some of these ops in the loop, because
    not all of them are declared pure.
    """
    value_map: dict[SSAValue, SSAValue] = dict(
        zip(region.block.args, args, strict=True)
    )
    moving: set[SSAValue] = {region.block.args[i] for i in varying}
    for op in region.block.ops:
        if isinstance(op, flex.YieldOp):
            return [value_map.get(v, v) for v in op.values]
        clone = op.clone(value_map)
        if outside is None or any(v in moving for v in op.operands):
            moving.update(op.results)
            code.builder.insert(clone)
        else:
            outside.builder.insert(clone)
    raise AssertionError("a scalar region ends in flex.yield")


class HasCode(Protocol):
    """A builder of a kernel, which writes scalar code."""

    code: ScalarCode


Step = Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]]
"""A function that writes a loop's step, from its number and the state."""


def counted_loop(
    program: HasCode,
    count: SSAValue,
    state: Sequence[SSAValue],
    step: Step,
    names: Sequence[str] = ("i",),
) -> list[SSAValue]:
    """Write a loop of `count` steps that carries `state`; return the final state.

    `names` are those of the step's number and of the state, as far as they are given.
    """
    outer = program.code
    block = Block(arg_types=[i32, *(v.type for v in state)])
    for arg, name in zip(block.args, names, strict=False):
        arg.name_hint = name
    program.code = ScalarCode(block)
    program.code.builder.insert(scf.YieldOp(*step(block.args[0], block.args[1:])))
    program.code = outer
    zero, one = outer.const(0), outer.const(1)
    op = scf.ForOp(zero, count, one, state, Region(block))
    outer.builder.insert(op)
    return list(op.results)


def new_region(arg_types: Sequence[Attribute], names: Sequence[str | None]) -> Region:
    """Return a region of one empty block with named arguments."""
    block = Block(arg_types=arg_types)
    for arg, name in zip(block.args, names, strict=True):
        arg.name_hint = name
    return Region(block)


def region_like(region: Region) -> Region:
    """Return a region of one empty block with the arguments of another region."""
    args = region.block.args
    return new_region([a.type for a in args], [a.name_hint for a in args])


COMMUTATIVE = (
    arith.AddiOp,
    arith.MuliOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.MinSIOp,
    arith.MaxSIOp,
    arith.AddfOp,
    arith.MulfOp,
)


def op_key(op: Operation, operands: Iterable[SSAValue] | None = None) -> object:
    """Return a key that is equal for ops that compute the same value.

    `operands` replace the op's own, if given.
    """
    operands = list(op.operands if operands is None else operands)
    if isinstance(op, COMMUTATIVE):
        operands.sort(key=id)
    return (
        type(op),
        tuple(operands),
        tuple(op.result_types),
        frozenset(op.properties.items()),
        frozenset(op.attributes.items()),
    )
