"""Rows that are split along their keys: a program's share, and what becomes of all.

Few rows are few programs, which leave most of a GPU idle: decoding has one for each
head. Programs that share the keys of the same rows fill it; each normalises what it
saw, and the kernel of `flex.combine_splits` weighs that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, TensorType, i32
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.tile import TileType
from flexc.passes.blocksparse.programs.arguments import grid_of
from flexc.passes.blocksparse.programs.online_softmax import safe_inverse
from flexc.passes.blocksparse.programs.rows import RowsProgram
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.tile_sizes import padded_head_dim
from flexc.passes.tile.map_builder import (
    FULL,
    ROW,
    Input,
    build_map,
    build_row_map,
)


@dataclass(frozen=True)
class Split:
    """One program's place among those that have the same rows."""

    b: SSAValue
    number: SSAValue
    count: SSAValue

    @classmethod
    def of(cls, code: ScalarCode, result_b: SSAValue, count: SSAValue) -> Split:
        """The splits of a batch are batches of the results, side by side."""
        result_b.name_hint = "result_b"
        b = code.div(result_b, count, "b")
        return cls(b, code.sub(result_b, code.mul(b, count), "split"), count)

    def share(
        self, code: ScalarCode, begin: SSAValue, end: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """This split's share of a range, which may be reversed.

        The last ones get what is left. So one that gets nothing begins at an iteration
        that there is, if there is any: a loop that is entered all the same reads there.
        """
        zero, one = code.const(0), code.const(1)
        length = code.insert(arith.MaxSIOp(code.sub(end, begin), zero))
        size = code.div(length, self.count)
        left = code.sub(length, code.mul(size, self.count))
        extra = code.sub(self.number, code.sub(self.count, left))
        before = code.add(
            code.mul(self.number, size), code.insert(arith.MaxSIOp(extra, zero))
        )
        first = code.add(begin, before, "first")
        has_more = code.cmp("sge", extra, zero)
        more = code.select(has_more, one, zero)
        return first, code.add(code.add(first, size), more, "end")


ELEMENTS = 1024
"""Of a tile of `combine_kernel`: few, as rows are few, and so that memory is read by
many threads."""

MAX_ROWS = 16

AT_ONCE = 8
"""Splits that are read before any is used: one after another they take a trip to
memory each."""


def combine_kernel(op: flex.CombineSplitsOp, name: str, target: str) -> tile.KernelOp:
    """The kernel that weighs the splits of rows."""
    return CombineProgram(op, name, target).build()


class CombineProgram(RowsProgram):
    """Builds it: an online softmax over splits, a few of them at a time."""

    op: flex.CombineSplitsOp

    def __init__(self, op: flex.CombineSplitsOp, name: str, target: str):
        padded = padded_head_dim(target, flex.tensor_shape(op.out)[3])
        rows = max(1, min(MAX_ROWS, ELEMENTS // padded))
        super().__init__(op, name, target, rows)
        self.shape = (rows, padded)
        assert isa(op.log_sum.type, TensorType[AnyFloat])
        self.type = op.log_sum.type.element_type

    def build(self) -> tile.KernelOp:
        code, count = self.code, self.args[self.op.splits]
        zero, one = code.const(0.0, self.type), code.const(1)
        m_i = tile.FullOp(code.const(-math.inf, self.type), self.tile(1))
        l_i, acc = (tile.FullOp(zero, self.tile(rank)) for rank in (1, 2))
        state = [code.insert(op) for op in (m_i, l_i, acc)]
        body = Block(arg_types=[i32, *(v.type for v in state)])
        for arg, hint in zip(body.args, ("i", "m_i", "l_i", "acc"), strict=True):
            arg.name_hint = hint
        i, *before = body.args
        self.code = ScalarCode(body)
        after = self.step(self.some_splits(i, count), before)
        self.code.builder.insert(scf.YieldOp(*after))
        self.code = code
        groups = code.ceildiv(count, AT_ONCE, "groups")
        loop = scf.ForOp(code.const(0), groups, one, state, Region(body))
        code.builder.insert(loop)
        return self.results(*loop.results)

    def tile(self, rank: int) -> TileType:
        return TileType(self.type, self.shape[:rank])

    def some_splits(self, i: SSAValue, count: SSAValue) -> list[list[SSAValue]]:
        """row_shift, log_sum and out of splits; log_sum of those beyond is -inf."""
        code, op = self.code, self.op
        b, *where = self.start
        first = code.mul(i, code.const(AT_ONCE))
        last = code.sub(count, code.const(1))
        batch = code.mul(b, count)
        found: list[list[SSAValue]] = []
        for offset in range(AT_ONCE):
            split = code.add(first, code.const(offset), "split")
            exists = code.cmp("slt", split, count)
            at = code.add(batch, code.insert(arith.MinSIOp(split, last)))
            start = [at, *where]
            values = (op.row_shift, op.log_sum, op.outs)
            shift, log_sum, out = (self.load(v, start) for v in values)
            log_sum = build_row_map(code, [log_sum, exists], _if_exists, "log_sum")
            found.append([shift, log_sum, out])
        return found

    def step(
        self, splits: Sequence[Sequence[SSAValue]], state: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Take in some splits."""
        code = self.code
        m_i, l_i, acc = state
        m = build_row_map(code, [m_i, *(s[0] for s in splits)], _maximum, "m")
        alpha = build_row_map(code, [m_i, m], _rescale, "alpha")
        weights = [
            build_row_map(code, [shift, log_sum, m], _weight, "w")
            for shift, log_sum, _ in splits
        ]
        total = build_row_map(code, [l_i, alpha, *weights], _total, "l")
        inputs: list[Input] = [(acc, FULL), (alpha, ROW)]
        for (*_, out), weight in zip(splits, weights, strict=True):
            inputs += [(out, FULL), (weight, ROW)]
        acc = build_map(code, self.shape, inputs, _weighted, "acc_next")
        return [m, total, acc]

    def results(self, m: SSAValue, total: SSAValue, acc: SSAValue) -> tile.KernelOp:
        """Normalise and store."""
        code, op = self.code, self.op
        inverse = build_row_map(code, [total], safe_inverse, "inverse")
        inputs: list[Input] = [(acc, FULL), (inverse, ROW)]
        out = build_map(code, self.shape, inputs, _mul, "o")
        lse = build_row_map(code, [m, total], _lse, "lse")
        for value, result in ((out, op.out), (lse, op.lse)):
            self.store(value, result)
        return self.kernel([op.outs, op.out], grid_of(op.out, op))


def _if_exists(code: ScalarCode, log_sum: SSAValue, exists: SSAValue) -> SSAValue:
    return code.select(exists, log_sum, code.const(-math.inf, log_sum.type))


def _maximum(code: ScalarCode, *values: SSAValue) -> SSAValue:
    largest, *rest = values
    for value in rest:
        largest = code.insert(arith.MaxnumfOp(largest, value))
    return largest


def _finite(code: ScalarCode, m: SSAValue) -> SSAValue:
    """A maximum, and 0 where it is infinite: exponents are then so and not NaN."""
    size = code.insert(math_dialect.AbsFOp(m))
    is_finite = code.cmpf("olt", size, code.const(math.inf, m.type))
    return code.select(is_finite, m, code.const(0.0, m.type))


def _exp(code: ScalarCode, x: SSAValue) -> SSAValue:
    return code.insert(math_dialect.ExpOp(x))


def _rescale(code: ScalarCode, m_i: SSAValue, m: SSAValue) -> SSAValue:
    """exp(m_i - m)"""
    return _exp(code, code.insert(arith.SubfOp(m_i, _finite(code, m))))


def _weight(
    code: ScalarCode, shift: SSAValue, log_sum: SSAValue, m: SSAValue
) -> SSAValue:
    """exp(shift - m + log_sum)

    The difference comes first: beside a large shift the logarithm would be lost.
    """
    difference = code.insert(arith.SubfOp(shift, _finite(code, m)))
    return _exp(code, code.insert(arith.AddfOp(difference, log_sum)))


def _mul(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.MulfOp(a, b))


def _total(
    code: ScalarCode, l_i: SSAValue, alpha: SSAValue, *weights: SSAValue
) -> SSAValue:
    total = _mul(code, l_i, alpha)
    for weight in weights:
        total = code.insert(arith.AddfOp(total, weight))
    return total


def _weighted(
    code: ScalarCode, acc: SSAValue, alpha: SSAValue, *rest: SSAValue
) -> SSAValue:
    """acc * alpha, and each value times its weight."""
    total = _mul(code, acc, alpha)
    for value, weight in zip(rest[::2], rest[1::2], strict=True):
        zero = code.const(0.0, value.type)
        # Of a split without pairs, not even NaN counts.
        is_none = code.cmpf("oeq", weight, zero)
        product = code.select(is_none, zero, _mul(code, value, weight))
        total = code.insert(arith.AddfOp(total, product))
    return total


def _lse(code: ScalarCode, m: SSAValue, total: SSAValue) -> SSAValue:
    return code.insert(arith.AddfOp(m, code.insert(math_dialect.LogOp(total))))
