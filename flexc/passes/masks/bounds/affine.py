"""Integers of a mask as affine forms: a * q_idx + c * kv_idx + uniform values.

A uniform value, one that is the same for all pairs of a head, is a symbol: whatever
it is computed by, it is that bit pattern. Sums that meet a 64-bit symbol whose size is
unknown may wrap around; who uses a form must check that at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from flexc.passes.scalar.ranges.linear_forms import (
    MODERATE,
    MaskFacts,
    int_constant,
)
from flexc.passes.scalar.ranges.value_ranges import width_of

MAX_COEFFICIENT = 1 << 20
"""Forms with larger factors are none, so that sums of products fit 64 bits."""

WIDE = 64
"""Symbols of so many bits stay in a form even where they cancel out: the sums they
were in may have wrapped around."""


@dataclass(frozen=True)
class Affine:
    """`row * q_idx + column * kv_idx + sum(n * value) + constant`, exactly."""

    row: int = 0
    column: int = 0
    symbols: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    constant: int = 0

    def minus(self, other: Affine) -> Affine:
        symbols = dict(self.symbols)
        for value, n in other.symbols.items():
            symbols[value] = symbols.get(value, 0) - n
        return Affine(
            self.row - other.row,
            self.column - other.column,
            {v: n for v, n in symbols.items() if n or width_of(v.type) == WIDE},
            self.constant - other.constant,
        )


class Facts(MaskFacts):
    """A mask region, and what is known of its values."""

    def is_exact(self, op: Operation) -> bool:
        """Sums with 64-bit symbols of unknown size are left to checks at run time."""
        if super().is_exact(op):
            return True
        if not isinstance(op, arith.AddiOp | arith.SubiOp):
            return False
        moving = [v for v in op.operands if self.pair(v)]
        is_wide = width_of(op.results[0].type) == WIDE
        # Only what is uniform is checked.
        return (
            is_wide
            and len(moving) < len(op.operands)
            and all(self.ranges[v].within(MODERATE) for v in moving)
        )

    def is_uniform(self, value: SSAValue) -> bool:
        return self.dependences.is_uniform(value)

    def constant(self, value: SSAValue) -> int | None:
        """The value of an integer constant, read as signed."""
        return int_constant(value)

    def affine(self, value: SSAValue) -> Affine | None:
        """The form of an integer; None if it has none."""
        if not isa(value.type, IntegerType) or value.type == i1:
            return None
        form = self.linear(value)
        row = column = 0
        symbols: dict[SSAValue, int] = {}
        for term, factor in form.terms:
            if abs(factor) > MAX_COEFFICIENT:
                return None
            if term is self.row:
                row = factor
            elif term is self.column:
                column = factor
            elif self.pair(term):
                return None
            else:
                symbols[term] = factor
        return Affine(row, column, symbols, form.const)
