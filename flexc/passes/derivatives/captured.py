"""Gradients of captured tensors: sums of the adjoints of reads, added where they read.

Reads by head, row or column add sums to kernels that other gradients have anyway. Those
by distance or by pair have kernels of their own on a GPU, and are sums by row on a CPU.
Reads of equal adjoints share the sums.
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

KINDS = {
    Coordinates.HEAD: SumKind.TOTAL,
    Coordinates.ROW: SumKind.TOTAL,
    Coordinates.COLUMN: SumKind.TOTAL,
    Coordinates.DIAGONAL: SumKind.DIAGONAL,
    Coordinates.PAIR: SumKind.PAIRS,
}
"""How the adjoints of what is read by these are summed; those of columns by keys."""

BY_ROW = (Coordinates.HEAD, Coordinates.ROW)
BY_COLUMN = (Coordinates.COLUMN,)
BY_PAIR = (Coordinates.DIAGONAL, Coordinates.PAIR)


@dataclass(frozen=True)
class Read:
    """A read of a captured tensor whose gradient is wanted."""

    value: str
    """The name of its adjoint, or of an equal one."""
    load: flex.LoadCaptureOp
    capture: int
    by: Coordinates

    @property
    def key(self) -> tuple[SumKind, str]:
        """What its sums have in common with others that are equal."""
        return KINDS[self.by], self.value


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
            found.append(Read(code.alike(value), load, known.capture, by))
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

    def by(self, by: Sequence[Coordinates]) -> list[Read]:
        return [r for r in self.reads if r.by in by]

    def sums(self, by: Sequence[Coordinates]) -> list[Sum]:
        """What the gradients of what is read by these are made of."""
        keys = dict.fromkeys(r.key for r in self.by(by))
        return [
            Sum(kind, [(value,)], self.score_type, name=f"{kind}_sums")
            for kind, value in keys
        ]

    def add(self, by: Sequence[Coordinates], results: Sequence[SSAValue]) -> None:
        """Add the results that `sums` asked for."""
        reads = self.by(by)
        keys = dict.fromkeys(r.key for r in reads)
        found = dict(zip(keys, results, strict=True))
        for read in reads:
            self.scatter(read, found[read.key])

    def add_pairs(self) -> None:
        """Add what is read by distance or by pair, by a kernel for each sum.

        Several in one take registers, of which a GPU's kernels have none left.
        """
        results: list[SSAValue] = []
        for i, s in enumerate(self.sums(BY_PAIR)):
            first = [self.host.code.const(0, i32)] * 3
            results += self.host.pair_sums(f"read_{i}", self.code, [s], first=first)
        self.add(BY_PAIR, results)

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
