"""The online softmax in tile ops: the algorithm, written once for all targets.

For each block of keys (Milakov and Gimelshein, 2018; Dao et al., 2022):

    m     = max(m_i, rowmax(x))
    p     = exp2(x * c - m * c)
    alpha = exp2((m_i - m) * c)
    l     = l_i * alpha + rowsum(p)
    acc   = acc * alpha + p @ v

c turns scores into exponents of 2; scaling takes one fused multiply-add for each score.
c is positive, so the maximum may be taken before scores are multiplied by c. alpha is
exactly 1 if the maximum does not change. A fused m_i * c - m * c would leave the
rounding error of m * c, which adds up over the blocks.

p would have that error too, of up to half the distance of floats at m * c. If this
error is large, as in a row whose scores are all -1e30, a power of two near c replaces
c: m * c is then exact, and scores below m have weight 0 with either factor.

If the magnitude of a row's maximum is beyond a limit, the score that it belongs to is
infinite. 0 then replaces the maximum, so that only a NaN score makes an exponent NaN.
For a maximum of -inf all weights are 0. For inf the weights are not used: the final sum
of such a row is inf, and its result NaN.

A term r that is added to all scores of a row in a block is added to their maximum:

    top   = rowmax(x) + r
    m     = max(m_i, top)
    p     = exp2(x * c + (top - m - rowmax(x)) * c)

If scores have a lower bound, m starts at this bound. m is then never large and never
-inf, even after a first block that is wholly masked, and no such guard is needed. If
scores have close bounds, there is no maximum at all: see `ShiftedSoftmax`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import AnyFloat, FloatAttr, UnitAttr, f64
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType, element_of, shape_of
from flexc.passes.blocksparse.programs.rows import safe_inverse
from flexc.passes.flex.score_factor import SoftmaxFacts
from flexc.passes.scalar.ranges.float_values import FORMATS
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import (
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_row_map,
    convert,
)

LN_2 = math.log(2)


@dataclass
class SoftmaxState:
    """The maximum, if any, and the sum of each row so far; the weighted values."""

    m_i: SSAValue | None
    l_i: SSAValue
    acc: SSAValue

    @staticmethod
    def of(values: Sequence[SSAValue]) -> SoftmaxState:
        """Return the state of a list from `values`, or of a loop's results."""
        for value, name in zip(reversed(values), ("acc", "l_i", "m_i"), strict=False):
            value.name_hint = name
        l_i, acc = values[-2:]
        return SoftmaxState(values[0] if len(values) > 2 else None, l_i, acc)

    def values(self) -> list[SSAValue]:
        maximum = [] if self.m_i is None else [self.m_i]
        return [*maximum, self.l_i, self.acc]


@dataclass(frozen=True)
class OnlineSoftmax:
    """A builder of the softmax of rows whose scores have type `score_type`.

    `shape` is that of the accumulator. `factor` is c, and `power` a power of two near
    c. Multiplied by all `units`, a maximum is in natural units; the scale is one of
    them if c includes it. Scores beyond `limit` are infinite in natural units. `facts`
    states the steps that may be left out.
    """

    score_type: AnyFloat
    shape: tuple[int, int]
    factor: SSAValue
    power: SSAValue
    units: Sequence[SSAValue]
    limit: SSAValue
    facts: SoftmaxFacts

    def initial(self, code: ScalarCode) -> SoftmaxState:
        rows = TileType(self.score_type, self.shape[:1])
        zero = code.const(0.0, self.score_type)
        least = -math.inf if self.facts.least is None else self.facts.least
        maximum = code.insert(tile.FullOp(code.const(least, self.score_type), rows))
        total = code.insert(tile.FullOp(zero, rows))
        acc = tile.FullOp(zero, TileType(self.score_type, self.shape))
        return SoftmaxState.of([maximum, total, code.insert(acc)])

    def update(
        self,
        code: ScalarCode,
        state: SoftmaxState,
        x: SSAValue,
        v: SSAValue,
        term: SSAValue | None = None,
        count: SSAValue | None = None,
        factor: Input | None = None,
    ) -> SoftmaxState:
        """Write the update of the state by scores `x` and values `v` of a key block.

        `term`, if given, is to be added to each row of `x`. If `count` is given, only
        the first `count` columns of `x` are keys. `factor`, if given, multiplies the
        values of each key.
        """
        assert state.m_i is not None
        row_max = code.insert(tile.ReduceOp(ReduceKind.MAX, x, 1, count), "row_max")
        if term is None:
            m = build_row_map(code, [state.m_i, row_max], ScalarCode.maxnumf, "m")
            p = self.weights(code, x, m)
        else:
            m, p = self.weights_with_term(code, x, row_max, state.m_i, term)
        alpha = self.alpha(code, state.m_i, m)
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1, count), "row_sum")
        l_i = build_row_map(code, [state.l_i, alpha, row_sum], ScalarCode.fma, "l")
        acc = self.scaled(code, state.acc, alpha)
        return SoftmaxState(m, l_i, self.product(code, p, v, acc, count, factor))

    def alpha(self, code: ScalarCode, m_i: SSAValue, m: SSAValue) -> SSAValue:
        """Write exp2((m_i - m) * c)."""
        if self.facts.least is not None:
            return build_row_map(code, [m_i, m, self.factor], _rescale, "alpha")
        inputs = [m_i, m, self.factor, self.limit]
        return build_row_map(code, inputs, _guarded_rescale, "alpha")

    def scaled(self, code: ScalarCode, acc: SSAValue, alpha: SSAValue) -> SSAValue:
        """Write acc * alpha."""
        inputs: list[Input] = [(acc, FULL), (alpha, ROW)]
        return build_map(code, self.shape, inputs, ScalarCode.mulf, "acc_scaled")

    def weights(self, code: ScalarCode, x: SSAValue, m: SSAValue) -> SSAValue:
        """Write exp2((x - m) * c)."""
        factor: Input = (self.factor, UNIFORM)
        if self.facts.least is None:
            inputs = [m, self.factor, self.power]
            factor = build_row_map(code, inputs, _factor, "factor"), ROW
            inputs.append(self.limit)
            shift = build_row_map(code, inputs, _guarded_shift, "shift")
        else:
            shift = build_row_map(code, [m, self.factor], _shift, "shift")
        inputs = [(x, FULL), factor, (shift, ROW)]
        return build_map(code, shape_of(x.type), inputs, exp2_fma, "p")

    def weights_with_term(
        self,
        code: ScalarCode,
        x: SSAValue,
        row_max: SSAValue,
        m_i: SSAValue,
        term: SSAValue,
    ) -> tuple[SSAValue, SSAValue]:
        """Write m and exp2((x + term - m) * c), with nothing added to each score.

        Both `term` and m may be so large that their sums with x lose all digits of x. A
        rounded sum with one of them might also overflow as an exponent. Exponents are
        therefore relative to the block's own maximum, like those of `weights`, plus the
        difference of this maximum and m, which is at most 0: no weight is above 1.
        """
        top = build_row_map(code, [row_max, term], ScalarCode.addf, "block_max")
        m = build_row_map(code, [m_i, top], ScalarCode.maxnumf, "m")
        inputs = [row_max, self.factor, self.power]
        factor = build_row_map(code, inputs, _factor, "factor")
        inputs = [row_max, top, m_i, factor, self.limit]
        shift = build_row_map(code, inputs, _shift_below, "shift")
        inputs = [(x, FULL), (factor, ROW), (shift, ROW)]
        return m, build_map(code, shape_of(x.type), inputs, exp2_fma, "p")

    def product(
        self,
        code: ScalarCode,
        p: SSAValue,
        v: SSAValue,
        acc: SSAValue,
        count: SSAValue | None,
        factor: Input | None,
    ) -> SSAValue:
        """Write acc + p @ v over the first `count` keys; None for all keys."""
        if factor is not None:
            inputs: list[Input] = [(p, FULL), factor]
            p = build_map(code, shape_of(p.type), inputs, ScalarCode.mulf, "p_scaled")
        weights = convert(code, p, element_of(v.type))
        return code.insert(tile.DotOp(weights, v, acc, count), "acc_next")

    def output(
        self,
        code: ScalarCode,
        state: SoftmaxState,
        element: Attribute,
        factor: SSAValue | None = None,
    ) -> SSAValue:
        """Write acc / l times `factor`, and 0 for a row without live pairs.

        The result for such a row is 0 even if masked values are infinite, so that acc
        is NaN.
        """
        total = self.total(code, state)
        invert = _inverse if self.facts.never_empty else safe_inverse
        if self.facts.least is None:
            invert = _inverse_unless_infinite
        inverse = build_row_map(code, [total], invert, "inverse")
        if factor is not None:
            inverse = build_row_map(code, [inverse, factor], ScalarCode.mulf, "inverse")
        inputs: list[Input] = [(state.acc, FULL), (inverse, ROW)]
        if self.facts.never_empty:
            out = build_map(code, self.shape, inputs, ScalarCode.mulf, "o")
        else:
            inputs.append((total, ROW))
            out = build_map(code, self.shape, inputs, _mul_unless_empty, "o")
        return convert(code, out, element)

    def total(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """Write l; inf for a row with an infinite score, NaN for a row with NaN."""
        if state.m_i is None or self.facts.least is not None:
            return state.l_i
        inputs = [state.l_i, state.m_i, self.limit]
        return build_row_map(code, inputs, _total, "total")

    def max_scores(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """Write the largest score of each row, in natural units."""
        rows = [self.natural_maximum(code, state), state.l_i]
        choose = _unless_nan
        if self.facts.least is not None and not self.facts.never_empty:
            choose = _unless_nan_or_empty
        return build_row_map(code, rows, choose, "max_scores")

    def natural_maximum(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """Write the state's maximum in natural units; any number for an empty row."""
        assert state.m_i is not None
        maximum = state.m_i
        for unit in self.units:
            maximum = build_row_map(
                code, [maximum, unit], ScalarCode.mulf, "max_scores"
            )
        return maximum

    def lse(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """Write the logarithm of the sum of exponentials, in natural units."""
        rows = [self.natural_maximum(code, state), self.total(code, state)]
        return build_row_map(code, rows, log_sum, "lse")

    def lse_parts(
        self, code: ScalarCode, state: SoftmaxState
    ) -> tuple[SSAValue, SSAValue]:
        """Write the maximum, and the logarithm of the sum of exp(score - maximum).

        Exponents were shifted by a rounded m * c, so the logarithm is corrected by the
        rounding error.
        """
        assert state.m_i is not None
        guarded = self.facts.least is None

        def body(
            c: ScalarCode,
            m: SSAValue,
            l_i: SSAValue,
            factor: SSAValue,
            power: SSAValue,
            limit: SSAValue,
        ) -> SSAValue:
            used, shift = factor, _shift(c, m, factor)
            if guarded:
                used = _factor(c, m, factor, power)
                shift = _guarded_shift(c, m, factor, power, limit)
            lost = c.fma(m, used, shift)
            lost = c.select(_is_within(c, m, limit), lost, c.const(0.0, m.type))
            lost = c.mulf(lost, c.const(LN_2, m.type))
            return c.subf(c.log(l_i), lost)

        total = self.total(code, state)
        rows = [state.m_i, total, self.factor, self.power, self.limit]
        log_sum = build_row_map(code, rows, body, "log_sum")
        return self.natural_maximum(code, state), log_sum


GROWTH = 8.0
"""The exponent up to which weights may grow before their maximum is replaced."""


@dataclass(frozen=True)
class LazySoftmax(OnlineSoftmax):
    """A builder of the softmax of rows whose sums are seldom scaled.

    A row keeps its maximum until a weight would be above 2^`GROWTH`. Sums are scaled
    after a block that replaces the maximum of any row. Later passes may replace it by
    other references (`tile.reference`).
    """

    def update(
        self,
        code: ScalarCode,
        state: SoftmaxState,
        x: SSAValue,
        v: SSAValue,
        term: SSAValue | None = None,
        count: SSAValue | None = None,
        factor: Input | None = None,
    ) -> SoftmaxState:
        """Write the update of the state; `x` already includes the terms of rows."""
        assert term is None
        assert state.m_i is not None
        row_max = code.insert(tile.ReduceOp(ReduceKind.MAX, x, 1, count), "row_max")
        inputs = [row_max, state.m_i, self.factor]
        above = build_row_map(code, inputs, _is_above, "above")
        m = build_row_map(code, [above, *inputs[:2]], ScalarCode.select, "m")
        assert isinstance(m.owner, tile.MapOp)
        m.owner.attributes[tile.REFERENCE] = UnitAttr()
        p = self.weights(code, x, m)
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1, count), "row_sum")
        l_i, acc = self.scaled_sums(code, state, m, above)
        l_i = build_row_map(code, [l_i, row_sum], ScalarCode.addf, "l")
        return SoftmaxState(m, l_i, self.product(code, p, v, acc, count, factor))

    def scaled_sums(
        self, code: ScalarCode, state: SoftmaxState, m: SSAValue, above: SSAValue
    ) -> Sequence[SSAValue]:
        """Write l and acc, scaled if the maximum of any row is replaced."""
        assert state.m_i is not None
        live, then = tile.LiveRangeOp(above), Block()
        code.builder.insert(live)
        moved = code.cmp("sgt", live.length, code.const(0))
        inner = ScalarCode(then)
        alpha = self.alpha(inner, state.m_i, m)
        l_i = build_row_map(inner, [state.l_i, alpha], ScalarCode.mulf, "l_i")
        then.add_op(scf.YieldOp(l_i, self.scaled(inner, state.acc, alpha)))
        otherwise = Block([scf.YieldOp(state.l_i, state.acc)])
        types = [state.l_i.type, state.acc.type]
        op = scf.IfOp(moved, types, Region(then), Region(otherwise))
        code.builder.insert(op)
        for result, name in zip(op.results, ("l_i", "acc"), strict=True):
            result.name_hint = name
        return op.results


@dataclass(frozen=True)
class ShiftedSoftmax(OnlineSoftmax):
    """A builder of the softmax of rows whose exponents are shifted by a constant."""

    @property
    def shift(self) -> float:
        """The shift in the precision of scores: lse must undo exactly this shift."""
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
        factor: Input | None = None,
    ) -> SoftmaxState:
        """Write the update of the state; `x` already includes the terms of rows."""
        assert term is None

        def weight(c: ScalarCode, x: SSAValue, factor: SSAValue) -> SSAValue:
            return exp2_fma(c, x, factor, c.const(self.shift, x.type))

        inputs = [(x, FULL), (self.factor, UNIFORM)]
        p = build_map(code, shape_of(x.type), inputs, weight, "p")
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1, count), "row_sum")
        l_i = build_row_map(code, [state.l_i, row_sum], ScalarCode.addf, "l")
        acc = self.product(code, p, v, state.acc, count, factor)
        return SoftmaxState(None, l_i, acc)

    def lse(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """Write the logarithm of the sum of exponentials, in natural units."""

        def body(c: ScalarCode, l_i: SSAValue) -> SSAValue:
            return log_sum(c, c.const(-self.shift * LN_2, l_i.type), l_i)

        return build_row_map(code, [state.l_i], body, "lse")

    def lse_parts(
        self, code: ScalarCode, state: SoftmaxState
    ) -> tuple[SSAValue, SSAValue]:
        """Write the shift, and the logarithm of the sum of shifted exponentials."""
        rows = TileType(self.score_type, self.shape[:1])
        shift = code.const(-self.shift * LN_2, self.score_type)
        shifts = code.insert(tile.FullOp(shift, rows), "row_shift")
        return shifts, build_row_map(code, [state.l_i], ScalarCode.log, "log_sum")


def exp2_fma(code: ScalarCode, x: SSAValue, c: SSAValue, shift: SSAValue) -> SSAValue:
    """Write exp2(x * c + shift)."""
    return code.exp2(code.fma(x, c, shift))


def _is_above(
    code: ScalarCode, row_max: SSAValue, m: SSAValue, c: SSAValue
) -> SSAValue:
    """Write the condition that a weight relative to m is too large; false for NaN."""
    exponent = code.mulf(code.subf(row_max, m), c)
    return code.cmpf("ogt", exponent, code.const(GROWTH, m.type))


def _is_minus_inf(code: ScalarCode, m: SSAValue) -> SSAValue:
    return code.cmpf("oeq", m, code.const(-math.inf, m.type))


def _is_within(code: ScalarCode, m: SSAValue, limit: SSAValue) -> SSAValue:
    """Write the condition that a score is finite."""
    return code.cmpf("ole", code.absf(m), limit)


def _is_small(code: ScalarCode, product: SSAValue) -> SSAValue:
    """Write the condition that the rounding of m * c does not change an exponent."""
    size = code.absf(product)
    limit = 2.0**57 if product.type == f64 else 2.0**28
    return code.cmpf("olt", size, code.const(limit, product.type))


def _factor(code: ScalarCode, m: SSAValue, c: SSAValue, power: SSAValue) -> SSAValue:
    """Write c, or `power` if m * c is large."""
    return code.select(_is_small(code, code.mulf(m, c)), c, power)


def _shift(code: ScalarCode, m: SSAValue, c: SSAValue) -> SSAValue:
    """Write -m * c."""
    return code.negf(code.mulf(m, c))


def _guarded_shift(
    code: ScalarCode, m: SSAValue, c: SSAValue, power: SSAValue, limit: SSAValue
) -> SSAValue:
    """Write -m times the factor, or 0 if m is infinite.

    Scores wait for this value, so both products are computed independently.
    """
    product = code.mulf(m, c)
    exact = code.negf(code.mulf(m, power))
    exact = code.select(_is_within(code, m, limit), exact, code.const(0.0, m.type))
    negated = code.negf(product)
    return code.select(_is_small(code, product), negated, exact)


def _rescale(code: ScalarCode, m_i: SSAValue, m: SSAValue, c: SSAValue) -> SSAValue:
    """Write exp2((m_i - m) * c)."""
    difference = code.subf(m_i, m)
    return code.exp2(code.mulf(difference, c))


def _guarded_rescale(
    code: ScalarCode, m_i: SSAValue, m: SSAValue, c: SSAValue, limit: SSAValue
) -> SSAValue:
    """Write exp2((m_i - m) * c); 0 if m_i is -inf, and 1 if both are inf."""
    finite = code.minnumf(m, limit)
    finite = code.select(_is_minus_inf(code, m), code.const(0.0, m.type), finite)
    exponent = code.mulf(code.subf(m_i, finite), c)
    exponent = code.minnumf(exponent, code.const(0.0, m.type))
    return code.exp2(exponent)


def _shift_below(
    code: ScalarCode,
    row_max: SSAValue,
    top: SSAValue,
    m_i: SSAValue,
    factor: SSAValue,
    limit: SSAValue,
) -> SSAValue:
    """Write (top - max(m_i, top) - row_max) * factor.

    Scores wait for this value, so the chain of ops after `top` is short. m_i is known
    earlier and is made finite first. The last op handles two kinds of rows: rows
    without live pairs in the block, whose term may be any number, and rows with an
    infinite score.
    """
    least = code.const(-FORMATS[m_i.type].largest, m_i.type)
    m = code.maxnumf(code.maxnumf(m_i, least), top)
    below = code.subf(top, m)
    shift = code.mulf(code.subf(below, row_max), factor)
    infinite = code.cmpf("ogt", top, limit)
    unused = code.or_(_is_minus_inf(code, row_max), infinite)
    return code.select(unused, code.const(0.0, m.type), shift)


def _inverse(code: ScalarCode, l_i: SSAValue) -> SSAValue:
    return code.divf(code.const(1.0, l_i.type), l_i)


def _is_empty(code: ScalarCode, l_i: SSAValue) -> SSAValue:
    return code.cmpf("oeq", l_i, code.const(0.0, l_i.type))


def _mul_unless_empty(
    code: ScalarCode, acc: SSAValue, inverse: SSAValue, l_i: SSAValue
) -> SSAValue:
    zero = code.const(0.0, acc.type)
    return code.select(_is_empty(code, l_i), zero, code.mulf(acc, inverse))


def _inverse_unless_infinite(code: ScalarCode, total: SSAValue) -> SSAValue:
    """Write 1 / total; 1 for a row without live pairs, NaN for an infinite total."""
    infinity = code.const(math.inf, total.type)
    infinite = code.cmpf("oeq", total, infinity)
    nan = code.const(math.nan, total.type)
    return code.select(infinite, nan, safe_inverse(code, total))


def _total(code: ScalarCode, l_i: SSAValue, m: SSAValue, limit: SSAValue) -> SSAValue:
    """Write l, or inf if m is inf; a NaN stays NaN."""
    infinite = code.addf(l_i, code.const(math.inf, l_i.type))
    return code.select(code.cmpf("ogt", m, limit), infinite, l_i)


def _unless_nan(code: ScalarCode, maximum: SSAValue, l_i: SSAValue) -> SSAValue:
    """Write a row's maximum, or NaN if the sum is NaN: the maximum ignores NaN."""
    return code.select(code.cmpf("uno", l_i, l_i), l_i, maximum)


def _unless_nan_or_empty(
    code: ScalarCode, maximum: SSAValue, l_i: SSAValue
) -> SSAValue:
    minus_inf = code.const(-math.inf, maximum.type)
    maximum = code.select(_is_empty(code, l_i), minus_inf, maximum)
    return _unless_nan(code, maximum, l_i)


def rest_of_parts(code: ScalarCode, shift: SSAValue, log_sum: SSAValue) -> SSAValue:
    """Write the rounding error of the sum of the parts; 0 if the sum is infinite.

    The error is itself a float (Knuth, The Art of Computer Programming, 4.2.2, theorem
    B).
    """
    lse = code.addf(shift, log_sum)
    added = code.subf(lse, shift)
    rest = code.addf(code.subf(shift, code.subf(lse, added)), code.subf(log_sum, added))
    magnitude = code.absf(lse)
    infinite = code.cmpf("oeq", magnitude, code.const(math.inf, lse.type))
    return code.select(infinite, code.const(0.0, lse.type), rest)


def log_sum(code: ScalarCode, maximum: SSAValue, l_i: SSAValue) -> SSAValue:
    return code.addf(maximum, code.log(l_i))
