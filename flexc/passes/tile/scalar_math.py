"""`tile-expand-math`: replace scalar ops that a target lacks by ops that it has.

Triton has exp, log, sin and similar functions, but no tanh, no pow and no floor
division. Every op in the tables of `math_expansions` becomes a formula, accurate to a
few units in the last place; each expansion states its bound. Functions of
half-precision numbers are computed in f32 and rounded once, as in the interpreter and
in torch.

Score mods with a soft cap call tanh for every score. The option `tanh` sets its
accuracy: `nvidia` is one instruction; `exp2` is short, and exact except near 0.

`tile-relax-score-math`: use cheaper arithmetic on scores.

A value that depends on the score is a sum of products, and so already rounded. A value
that depends only on positions may later be compared or rounded to an integer, and stays
as exact as the user wrote it. In maps over scores, in f32:

1. x / u, with u of lower rank than x, becomes x * (1 / u), so that the reciprocal is
   computed once. The error is 1.5 units in the last place instead of 0.5, for 2^-126 <=
   |u| <= 2^126. Beyond that range PTX's `div.full.f32` gives 0 as well.
2. Other divisions of score-dependent values get the `arcp` and `afn` flags: a target
   may approximate them.
3. float(i - j), with positions i and j along different dimensions, becomes float(i) -
   float(j) if `max_length` says that floats hold positions exactly. Conversions are
   slow, and there are fewer of them by row and by column.
4. exp2 and tanh of scores get the same flags. On a CPU they are then off by at most
   2^-18 of the result.

With `narrow`, only kernels that multiply packed 16-bit floats are rewritten: weights
are rounded to those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import flex, tile
from flexc.passes.scalar.math_expansions import EXPANSIONS, Expansion
from flexc.passes.scalar.math_expansions.elementary import TANH_MODES
from flexc.passes.scalar.math_expansions.exact import to_unsigned
from flexc.passes.scalar.math_expansions.values import NARROW, Value
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import Tanh
from flexc.passes.tile.tile_split_maps import variance

ANY_WIDTH = (math_dialect.AbsFOp, math_dialect.CopySignOp)
"""Functions of bits, which narrow types have without conversion."""


def is_math(op: Operation) -> bool:
    """Return True if an op is a function whose narrow operands must be widened."""
    if isinstance(op, ANY_WIDTH):
        return False
    return op.name.startswith("math.") or isinstance(op, flex.FmodOp)


@dataclass(frozen=True)
class MathExpander:
    """A rewrite of one op at a time."""

    expansions: dict[type[Operation], Expansion]

    def run(self, op: Operation) -> None:
        """Expand an op, or leave it if its target has it."""
        before = op.prev_op
        result = self.expand(op)
        if result is None:
            return
        block = op.parent
        assert block is not None
        added = block.first_op if before is None else before.next_op
        while added is not None and added is not op:
            added.location = op.location
            added = added.next_op
        result.ssa.name_hint = op.results[0].name_hint
        Rewriter.replace_op(op, [], [result.ssa])

    def expand(self, op: Operation) -> Value | None:
        """Return the value that replaces an op, or None if it stays."""
        code = ScalarCode(InsertPoint.before(op))
        operands = [Value(code, v) for v in op.operands]
        if isinstance(op, arith.FPToUIOp):
            return to_unsigned(operands[0], op.result.type)
        if is_math(op) and isinstance(op.results[0].type, NARROW):
            return self.widen(op, operands)
        expansion = self.expansions.get(type(op))
        return expansion(*operands) if expansion else None

    def widen(self, op: Operation, operands: Sequence[Value]) -> Value:
        """Compute a function in f32 and round the result to the op's type."""
        wide = [
            v.cast(arith.ExtFOp, f32) if isinstance(v.type, NARROW) else v
            for v in operands
        ]
        expansion = self.expansions.get(type(op))
        result = expansion(*wide) if expansion else wide[0].apply(type(op), *wide[1:])
        return result.cast(arith.TruncFOp, op.results[0].type)


@dataclass(frozen=True)
class TileExpandMathPass(ModulePass):
    """Rewrite scalar ops that Triton lacks into those that it has."""

    name = "tile-expand-math"

    tanh: Tanh = "exact"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        tanh = TANH_MODES[self.tanh]
        expander = MathExpander(EXPANSIONS | {math_dialect.TanhOp: tanh})
        for inner in list(op.body.walk()):
            expander.run(inner)


EXACT_F32_INTEGERS = 1 << 24
"""The bound up to which f32 holds every integer exactly."""

APPROXIMATE = arith.FastMathFlagsAttr(
    [
        FastMathFlag.ALLOW_RECIP,
        FastMathFlag.APPROX_FUNC,
    ]
)


def score_dependent(op: tile.MapOp) -> set[SSAValue]:
    """Return values of a map's region that depend on a full tile, and so on a score."""
    full = tuple(range(len(op.shape)))
    found: set[SSAValue] = {
        arg
        for i, arg in enumerate(op.body.block.args)
        if op.span(i) == full and len(full) == 2
    }
    for inner in op.body.block.ops:
        if any(v in found for v in inner.operands):
            found.update(inner.results)
    return found


class MapRelaxer:
    """A rewrite of the region of one map over scores."""

    def __init__(self, op: tile.MapOp, positions_are_floats: bool):
        self.op = op
        self.positions_are_floats = positions_are_floats
        self.spans = variance(op)
        self.scores = score_dependent(op)

    def run(self) -> None:
        for op in list(self.op.body.block.ops):
            if isinstance(op, arith.DivfOp) and op.lhs in self.scores:
                self.relax_division(op)
            elif isinstance(op, arith.SIToFPOp) and self.positions_are_floats:
                self.split_difference(op)
            elif isinstance(op, math_dialect.Exp2Op | math_dialect.TanhOp):
                self.relax_function(op)

    def is_lower(self, value: SSAValue, than: SSAValue) -> bool:
        return self.spans[value] < self.spans[than]

    def relax_division(self, op: arith.DivfOp) -> None:
        if op.result.type != f32:
            return
        if not self.is_lower(op.rhs, op.lhs):
            op.fastmath = APPROXIMATE
            return
        code = ScalarCode(InsertPoint.before(op))
        inverse = arith.DivfOp(code.const(1.0, f32), op.rhs)
        code.insert(inverse, "inverse")
        product = arith.MulfOp(op.lhs, inverse.result)
        self.replace(op, product)

    def relax_function(self, op: math_dialect.Exp2Op | math_dialect.TanhOp) -> None:
        if op.operand in self.scores and op.result.type == f32:
            op.fastmath = APPROXIMATE

    def split_difference(self, op: arith.SIToFPOp) -> None:
        """Rewrite float(i - j) to float(i) - float(j)."""
        difference = op.input.owner
        if op.result.type != f32 or not isinstance(difference, arith.SubiOp):
            return
        i, j = difference.lhs, difference.rhs
        if not (self.is_position(i) and self.is_position(j)):
            return
        if self.spans[i] == self.spans[j]:
            return
        code = ScalarCode(InsertPoint.before(op))
        casts = [arith.SIToFPOp(i, f32), arith.SIToFPOp(j, f32)]
        for cast, index in zip(casts, (i, j), strict=True):
            code.insert(cast, f"{index.name_hint}_f32")
        new = arith.SubfOp(casts[0].result, casts[1].result)
        self.replace(op, new)

    def is_position(self, value: SSAValue) -> bool:
        """Return True if a region's value is the index of a query or a key."""
        if not isinstance(value, BlockArgument):
            return False
        return isinstance(self.op.inputs[value.index].owner, tile.IotaOp)

    def replace(self, op: Operation, new: Operation) -> None:
        """Replace `op` by `new`, and keep the set `scores` up to date."""
        if any(v in self.scores for v in new.operands):
            self.scores.add(new.results[0])
        new.results[0].name_hint = op.results[0].name_hint
        Rewriter.replace_op(op, [new], [new.results[0]])


def has_packed_products(kernel: tile.KernelOp) -> bool:
    """Return True if a kernel multiplies packed 16-bit floats."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    return any(tile.is_packed(op.rhs.type) for op in dots)


@dataclass(frozen=True)
class TileRelaxScoreMathPass(ModulePass):
    """Approximate arithmetic on scores, within stated errors."""

    name = "tile-relax-score-math"

    narrow: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if not isinstance(kernel, tile.KernelOp):
                continue
            if self.narrow and not has_packed_products(kernel):
                continue
            length = kernel.number("max_length")
            exact = length is not None and length <= EXACT_F32_INTEGERS
            for inner in list(kernel.walk()):
                if isinstance(inner, tile.MapOp):
                    MapRelaxer(inner, exact).run()
