"""Gradients of captured tensors: sums of the adjoints of reads, added where they read.

Reads by head, row or column add sums to kernels that other gradients have anyway; each
read by distance or by pair has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE, Coordinates, DerivativeOp, SumKind, score_type
from flexc.passes.analysis.ranges.intervals import full
from flexc.passes.analysis.reads.capture_index import CaptureIndices
from flexc.passes.analysis.reads.slices import sliced
from flexc.passes.derivatives.kernels import HostFunction, Sum
from flexc.passes.derivatives.pairs_code import PairsCode

KINDS = {Coordinates.DIAGONAL: SumKind.DIAGONAL, Coordinates.PAIR: SumKind.PAIRS}
"""Sums that have a kernel of their own."""


@dataclass(frozen=True)
class Read:
    """A read of a captured tensor whose gradient is wanted."""

    value: str
    """The name of its adjoint."""
    load: flex.LoadCaptureOp
    capture: int
    by: Coordinates


def reads_of(op: DerivativeOp, code: PairsCode, prefix: str) -> list[Read]:
    """The reads whose gradient is wanted, and how their index varies."""
    length = op.fact("max_length", full(32).hi)
    indices = CaptureIndices(op.score_mod, length, op.indices_fit is not None)
    found: list[Read] = []
    for i, load in enumerate(code.reads):
        value = f"{prefix}read {i}"
        if value in code.yields:
            known = indices.read(load)
            by = Coordinates(known.index_class.value)
            found.append(Read(value, load, known.capture, by))
    return found


class CapturedGradients:
    """The gradients of what a derivative's score_mod captures, as sums come in."""

    def __init__(self, host: HostFunction, code: PairsCode, prefix: str):
        self.host, self.code = host, code
        self.reads = reads_of(host.op, code, prefix)
        self.score_type = score_type(host.op.query.type)
        self.gradients: dict[int, SSAValue] = {}

    def named(self) -> dict[str, SSAValue]:
        """What was found, by the names of the dialect."""
        return {f"{CAPTURE}{i}": g for i, g in self.gradients.items()}

    def totals(self, by: Sequence[Coordinates]) -> list[Sum]:
        """The sums over rows, or columns, of what is read by these."""
        return [
            Sum(SumKind.TOTAL, [(r.value,)], self.score_type, name=f"sums_{i}")
            for i, r in enumerate(self.by(by))
        ]

    def by(self, by: Sequence[Coordinates]) -> list[Read]:
        return [r for r in self.reads if r.by in by]

    def add_totals(self, by: Sequence[Coordinates], totals: Sequence[SSAValue]) -> None:
        """Add the results that `totals` asked for."""
        for read, total in zip(self.by(by), totals, strict=True):
            self.scatter(read, total)

    def add_pairs(self) -> None:
        """Add what is read by distance or by pair."""
        for i, read in enumerate(self.by(list(KINDS))):
            kind = KINDS[read.by]
            s = Sum(kind, [(read.value,)], self.score_type, name=f"{kind}_sums")
            zero = self.host.code.const(0, i32)
            first = [zero] * 3
            (sums,) = self.host.pair_sums(f"read_{i}", self.code, [s], first=first)
            self.scatter(read, sums)

    def scatter(self, read: Read, sums: SSAValue) -> None:
        """Add the sums of a read to the gradient of what it read."""
        op = self.host.op
        target = op.captures[read.capture]
        before = self.gradients.get(read.capture)
        scatter = flex.ScatterSumsOp(
            read.by,
            sums,
            target,
            op.captures,
            [] if before is None else [before],
            sliced(op.score_mod, list(read.load.indices)),
        )
        scatter.result.name_hint = f"d_{target.name_hint or 'capture'}"
        self.gradients[read.capture] = self.host.append(scatter)[0]
