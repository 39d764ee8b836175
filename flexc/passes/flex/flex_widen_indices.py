"""`flex-widen-indices`: compute indices that may overflow an i32 in i64.

Positions and captured integers are int64 in torch's eager mode, and i32 in a mod's
region. If neither `max_length` nor the range of all positions bounds a result to i32,
the result is computed in i64. So are the values computed from this result, until a
value surely fits an i32, is compared, is converted to a float, or is the index of a
load. In such code the frontend's truncation of captured integers and literals to i32 is
dropped, and shifts may be by more than 31 bits. Casts by the user stay.

64-bit comparisons for each pair are expensive on a GPU. If a wide value varies along
fewer positions than the narrow value that it is compared with, the wide value is
clamped to i32 instead. The clamp is computed outside the loop. The comparison gives the
same result, as the narrow value is strictly within i32.

With `indices_fit` the pass does nothing. The pass precedes every simplification:
simplification rules hold for sums that wrap, not for the exact sums of i64.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.passes.scalar.canonicalization import is_unused
from flexc.passes.scalar.ranges.exact_ranges import position_args
from flexc.passes.scalar.ranges.index_proofs import IndexWidths
from flexc.passes.scalar.ranges.intervals import INDEX, Interval, full
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.scalar.variation import PAIR, Along, Dependences

NARROW = full(width_of(i32))


class RegionWidener:
    """A rewriter of one region; the old ops stay until the end, for the analyses."""

    def __init__(self, widths: IndexWidths):
        self.widths = widths
        self.ranges = widths.ranges
        self.wide_ops = widths.wide_ops()
        first = widths.region.block.args[0]
        self.along = Dependences(
            widths.region, has_score=not isinstance(first.type, IntegerType)
        )
        self.wide: dict[SSAValue, SSAValue] = {}
        self.clamps: dict[SSAValue, SSAValue] = {}
        self.constants: dict[int, SSAValue] = {}
        self.replaced: dict[SSAValue, SSAValue] = {}

    def run(self) -> None:
        for op in self.wide_ops:
            before = op.prev_op
            self.widen(op, ScalarCode(InsertPoint.before(op)))
            set_locations(op, before)
        if self.wide_ops:
            self.replace_old()

    def widen(self, op: Operation, code: ScalarCode) -> None:
        """Write the replacement of an op that computes or reads wide values."""
        result = op.results[0]
        match op:
            case arith.ExtSIOp():
                self.wide[result] = self.widened(op.input, code)
            case arith.CmpiOp():
                operands = self.clamped(op, code) or self.all_widened(op, code)
                self.replaced[result] = self.rebuild(op, operands, result.type, code)
            case flex.LoadCaptureOp() | arith.SIToFPOp():
                operands = [self.as_wide_as_needed(v, code) for v in op.operands]
                self.replaced[result] = self.rebuild(op, operands, result.type, code)
            case _:
                operands = self.all_widened(op, code)
                self.wide[result] = self.rebuild(op, operands, i64, code)

    def all_widened(self, op: Operation, code: ScalarCode) -> list[SSAValue]:
        """Return the integer operands as i64; the condition of a select stays an i1."""
        flags = op.operands[: isinstance(op, arith.SelectOp)]
        numbers = op.operands[len(flags) :]
        return [*flags, *(self.widened(v, code) for v in numbers)]

    def as_wide_as_needed(self, value: SSAValue, code: ScalarCode) -> SSAValue:
        if not isinstance(value.type, IntegerType):
            return value
        return self.widened(value, code) if self.widths.is_too_wide(value) else value

    def widened(self, value: SSAValue, code: ScalarCode) -> SSAValue:
        """Return the exact value of an integer as i64."""
        if value in self.wide:
            return self.wide[value]
        if value.type == i64:
            return value
        self.wide[value] = wide = self.extended(value, code)
        return wide

    def extended(self, value: SSAValue, code: ScalarCode) -> SSAValue:
        owner = value.owner
        if isinstance(owner, arith.ConstantOp):
            constant = self.ranges[value].constant
            assert constant is not None
            return self.constant(constant, code)
        if isinstance(owner, arith.TruncIOp) and self.ranges.is_exact(value):
            return self.widened(owner.input, code)
        return code.int_cast(value, i64)

    def constant(self, value: int, code: ScalarCode) -> SSAValue:
        if value not in self.constants:
            self.constants[value] = code.const(value, i64)
        return self.constants[value]

    def clamped(self, op: arith.CmpiOp, code: ScalarCode) -> list[SSAValue] | None:
        """Return operands of an equivalent, cheaper i32 comparison, or None."""
        if op.lhs.type != i32:
            return None
        strictly_inside = Interval(NARROW.lo + 1, NARROW.hi - 1)
        for narrow, wide in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            varies_more = self.pair(narrow) & ~self.pair(wide)
            if varies_more and self.ranges[narrow].within(strictly_inside):
                clamp = self.clamp(wide, code)
                return [clamp if v is wide else v for v in op.operands]
        return None

    def pair(self, value: SSAValue) -> Along:
        """Return the positions that a value varies along: both for scores."""
        along = self.along[value]
        return PAIR if along & Along.SCORE else along & PAIR

    def clamp(self, value: SSAValue, code: ScalarCode) -> SSAValue:
        """Return the i32 that is nearest to a wide value."""
        if value not in self.clamps:
            wide = self.widened(value, code)
            low = code.max(wide, self.constant(NARROW.lo, code))
            both = code.min(low, self.constant(NARROW.hi, code))
            self.clamps[value] = code.insert(arith.TruncIOp(both, i32), "clamped")
        return self.clamps[value]

    def rebuild(
        self,
        op: Operation,
        operands: list[SSAValue],
        type_: Attribute,
        code: ScalarCode,
    ) -> SSAValue:
        """Write the same op on other operands."""
        new = type(op).create(
            operands=operands,
            result_types=[type_],
            properties=op.properties,
            attributes=op.attributes,
        )
        return code.insert(new, op.results[0].name_hint)

    def replace_old(self) -> None:
        """Replace old values by new ones, the last op first.

        A value that an old op still reads keeps the lowest bits of its type.
        """
        for op in reversed(list(self.widths.region.block.ops)):
            if op in self.wide_ops and not is_unused(op):
                result = op.results[0]
                new = self.replaced.get(result) or self.narrowed(op, result)
                result.replace_all_uses_with(new)
            if is_unused(op):
                Rewriter.erase_op(op)

    def narrowed(self, op: Operation, result: SSAValue) -> SSAValue:
        """Return the lowest bits of a wide value, in the type of `result`."""
        assert isa(result.type, IntegerType)
        before, code = op.prev_op, ScalarCode(InsertPoint.before(op))
        new = code.int_cast(self.wide[result], result.type)
        set_locations(op, before)
        return new


def set_locations(op: Operation, before: Operation | None) -> None:
    """Give the ops between `before` and `op` the source location of `op`."""
    new = op.prev_op
    while new is not None and new is not before:
        new.location = op.location
        new = new.prev_op


def widths_of(op: flex.WithMods) -> list[IndexWidths]:
    """Return the widths that the mods of an op need, for any captures."""
    length = Interval(0, min(op.fact("max_length", INDEX.hi + 1) - 1, INDEX.hi))
    ranges = (INDEX, INDEX, length, length)
    return [
        IndexWidths(region, dict(zip(position_args(region), ranges, strict=True)))
        for region in (op.score_mod, op.mask_mod)
    ]


def would_widen(op: flex.WithMods) -> bool:
    """Return True if the pass would change an op without `indices_fit`."""
    return any(widths.wide_ops() for widths in widths_of(op))


@dataclass(frozen=True)
class FlexWidenIndicesPass(ModulePass):
    """A pass that computes indices that may overflow an i32 in i64."""

    name = "flex-widen-indices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in list(op.walk()):
            if isinstance(attention, flex.WithMods) and not attention.indices_fit:
                for widths in widths_of(attention):
                    RegionWidener(widths).run()
