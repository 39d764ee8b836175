"""`tile-expand-math`: replace scalar ops that a target lacks by ops that it has.

Triton has exp, log, sin and similar functions, but no tanh, no pow and no floor
division. Every op in the tables of `math_expansions` becomes a formula, accurate to a
few units in the last place; each expansion states its bound. Functions of
half-precision numbers are computed in f32 and rounded once, as in the interpreter and
in torch.

Score mods with a soft cap call tanh for every score. The option `tanh` sets its
accuracy: `nvidia` is one instruction; `exp2` is short, and exact except near 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import flex
from flexc.passes.scalar.math_expansions import EXPANSIONS, Expansion
from flexc.passes.scalar.math_expansions.elementary import TANH_MODES
from flexc.passes.scalar.math_expansions.integers import to_unsigned
from flexc.passes.scalar.math_expansions.values import NARROW, Value
from flexc.passes.scalar.scalar_code import ScalarCode

TanhMode = Literal["exact", "nvidia", "exp2"]

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

    tanh: TanhMode = "exact"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        tanh = TANH_MODES[self.tanh]
        expander = MathExpander(EXPANSIONS | {math_dialect.TanhOp: tanh})
        for inner in list(op.body.walk()):
            expander.run(inner)
