"""The outputs of `summarize`, and the types in which they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    IntegerType,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.tile import ReduceKind
from flexc.passes.masks.blocks.block_code import Summary
from flexc.passes.scalar.scalar_code import ScalarCode

MIN, MAX = ReduceKind.MIN, ReduceKind.MAX


@dataclass(frozen=True)
class SummaryOutput:
    """One output of a summary: a tensor with an element for each block."""

    axis: str
    index: int
    """The index of the summary."""
    end: Literal["lo", "hi", "nan"]
    kind: ReduceKind
    type: Attribute
    """The type that the classifier takes."""
    empty: float
    """The value of a block without used positions."""

    @property
    def name(self) -> str:
        return f"{self.axis}{self.index}_{self.end}"

    @property
    def stored(self) -> Attribute:
        """The type of the elements in memory."""
        if isinstance(self.type, BFloat16Type | Float16Type):
            return f32
        if isa(self.type, IntegerType):
            return i64 if self.type.width.data > 32 else i32
        return self.type


def outputs_of(summaries: Sequence[Summary]) -> list[SummaryOutput]:
    """Return the outputs of `summarize`, in order: lo, hi and, for floats, nan."""
    found: list[SummaryOutput] = []
    for i, summary in enumerate(summaries):
        last = summary.region.block.last_op
        assert isinstance(last, flex.YieldOp)
        type_ = last.values[0].type
        if isinstance(type_, AnyFloat):
            least, greatest = -inf, inf
        else:
            assert isa(type_, IntegerType)
            half = 1 << (type_.width.data - 1)
            least, greatest = (0, 1) if type_ == i1 else (-half, half - 1)
        found.append(SummaryOutput(summary.axis, i, "lo", MIN, type_, greatest))
        found.append(SummaryOutput(summary.axis, i, "hi", MAX, type_, least))
        if isinstance(type_, AnyFloat):
            found.append(SummaryOutput(summary.axis, i, "nan", MAX, i1, 0))
    return found


def widened(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """Convert a value to the type in which it is stored."""
    if value.type == type_:
        return value
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    return code.insert(arith.ExtFOp(value, f32))


def narrowed(code: ScalarCode, value: SSAValue, type_: Attribute) -> SSAValue:
    """Convert a stored value back to its type."""
    if value.type == type_:
        return value
    if type_ == i1:
        return code.cmp("ne", value, code.const(0, value.type))
    if isa(type_, IntegerType):
        return code.int_cast(value, type_)
    assert isinstance(type_, AnyFloat)
    return code.insert(arith.TruncFOp(value, type_))
