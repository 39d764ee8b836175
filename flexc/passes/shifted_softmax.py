"""The online softmax of scores with close bounds: no maximum, nothing to rescale.

    p   = exp2(x * c + shift)
    l   = l_i + rowsum(p)
    acc = acc + p @ v

`shift` is one constant for all rows. `softmax_facts` says when that is as good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType, shape_of
from flexc.passes.map_builder import FULL, UNIFORM, build_map, build_row_map
from flexc.passes.online_softmax import (
    OnlineSoftmax,
    SoftmaxState,
    exp2_fma,
    log,
    log_sum,
)
from flexc.passes.scalar_code import ScalarCode

LN_2 = math.log(2)


@dataclass(frozen=True)
class ShiftedSoftmax(OnlineSoftmax):
    """Builds the softmax of rows whose exponents are shifted by a constant."""

    @property
    def shift(self) -> float:
        """The shift as a number of the scores' type: lse undoes what is done."""
        assert self.facts.shift is not None
        return FloatAttr(self.facts.shift, self.score_type).value.data

    def initial(self, code: ScalarCode) -> SoftmaxState:
        zero = code.const(0.0, self.score_type)
        rows = tile.FullOp(zero, TileType(self.score_type, self.shape[:1]))
        acc = tile.FullOp(zero, TileType(self.score_type, self.shape))
        return SoftmaxState.of([code.insert(rows), code.insert(acc)])

    def update(
        self,
        code: ScalarCode,
        state: SoftmaxState,
        x: SSAValue,
        v: SSAValue,
        term: SSAValue | None = None,
        count: SSAValue | None = None,
    ) -> SoftmaxState:
        """Take in the scores of one block of keys, terms of rows included."""
        assert term is None

        def weight(c: ScalarCode, x: SSAValue, factor: SSAValue) -> SSAValue:
            return exp2_fma(c, x, factor, c.const(self.shift, x.type))

        inputs = [(x, FULL), (self.factor, UNIFORM)]
        p = build_map(code, shape_of(x.type), inputs, weight, "p")
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1, count), "row_sum")
        l_i = build_row_map(code, [state.l_i, row_sum], _add, "l")
        return SoftmaxState(None, l_i, self.product(code, p, v, state.acc, count))

    def lse(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """The logarithm of the sum of exponentials, in natural units."""

        def body(c: ScalarCode, l_i: SSAValue) -> SSAValue:
            return log_sum(c, c.const(-self.shift * LN_2, l_i.type), l_i)

        return build_row_map(code, [state.l_i], body, "lse")

    def lse_parts(
        self, code: ScalarCode, state: SoftmaxState
    ) -> tuple[SSAValue, SSAValue]:
        """The shift, and the logarithm of the sum of exponentials."""
        rows = TileType(self.score_type, self.shape[:1])
        shift = code.const(-self.shift * LN_2, self.score_type)
        shifts = code.insert(tile.FullOp(shift, rows), "row_shift")
        return shifts, build_row_map(code, [state.l_i], log, "log_sum")


def _add(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.AddfOp(a, b))
