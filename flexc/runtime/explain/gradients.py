"""How the gradients of a call are computed: of what it captures, and over which blocks.

A read's adjoints are summed over the pairs that it does not tell apart: `by` says what
is left, and so how much there is to add to the gradient of the captured tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, ModuleOp, TensorType
from xdsl.ir import SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE
from flexc.errors import GradientError
from flexc.passes.flex.derivatives.build import Derivative, derivative_module
from flexc.passes.flex.derivatives.pairs_code import backward_code
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.masks.bounds.describe_ranges import RangeSpeller
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.scalar.proof import Proven, WhyNot
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.readable import spell
from flexc.passes.scalar.reads.capture_index import CaptureIndices
from flexc.passes.scalar.reads.captured_read import IndexClass
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.options import NO_OPTIONS, is_interpreting
from flexc.runtime.kernels.driver import convert_for

By = Literal["head", "row", "column", "distance", "pair"]

Way = Literal["no mask", "bounds", "tables", "every pair"]

BY: dict[IndexClass, By] = {
    IndexClass.HEAD: "head",
    IndexClass.ROW: "row",
    IndexClass.COLUMN: "column",
    IndexClass.DIAGONAL: "distance",
    IndexClass.PAIR: "pair",
}

QUERIES = "blocks of queries"

VARY = 'bits may vary between runs, not with kernel_options={"deterministic": True}'


@dataclass(frozen=True)
class ReadGradient:
    """How the adjoints of one read are summed."""

    read: str
    """What is read: `bias[h, q_idx - kv_idx]`, say."""
    by: By
    """What each sum is of: a head, one of its rows, columns or distances, or a pair."""
    why: str
    """Why they are summed by pair, though not each pair reads an element of its own."""
    atomics: bool
    """They are added up in any order, by atomics of a GPU."""

    def __str__(self) -> str:
        text = f"by {self.by}: {self.read}"
        text += f", as {self.why}" if self.why else ""
        return text + (", added by atomics in any order" if self.atomics else "")


@dataclass(frozen=True)
class CaptureGradient:
    """How the gradient of one captured tensor is made."""

    name: str
    wanted: bool
    """It requires a gradient now."""
    reads: tuple[ReadGradient, ...]
    """Those that scores depend on."""
    refusal: str | None = None
    """Why it has none, where flexc refuses to differentiate it."""

    def __str__(self) -> str:
        text = "\n".join(map(str, self.reads)) or "zero: no score depends on it"
        if self.refusal is not None:
            text = f"refused: {self.refusal}"
        return text if self.wanted else f"{text} (not asked for now)"


@dataclass(frozen=True)
class GradientFacts:
    """How the gradients of a call are computed."""

    captured: tuple[CaptureGradient, ...]
    """Of each captured tensor of floats that score_mod has."""
    way: Way
    """How the blocks of queries are found that a block of keys meets."""
    why: str

    deterministic: bool
    """Whether all gradients that are asked for are equal bits at every run."""

    @property
    def heading(self) -> str:
        if self.deterministic:
            return "equal bits at every run"
        return VARY

    def lines(self) -> Iterator[tuple[str, str]]:
        """What is told, and by which name."""
        for captured in self.captured:
            yield captured.name, str(captured)
        yield QUERIES, f"{self.way}: {self.why}"


def gradients_of(subject: Subject) -> GradientFacts:
    """How the gradients of a call are computed."""
    if subject.call.backend == "eager":
        why = 'backend="eager" differentiates dense attention, by torch'
        return GradientFacts((), "every pair", why, subject.call.deterministic)
    captured = tuple(captured_gradients(subject))
    varies = any(read.atomics for c in captured if c.wanted for read in c.reads)
    return GradientFacts(captured, *queries_of_keys(subject), not varies)


def captured_gradients(subject: Subject) -> Iterator[CaptureGradient]:
    """Of each captured tensor of floats, in their order."""
    args = subject.simple.score_mod.block.args
    first = len(args) - len(subject.captures)
    floats = {i: a for i, a in enumerate(args[first:]) if a.uses and is_of_floats(a)}
    if not floats:
        return
    reads = Reads.of(subject, [f"{CAPTURE}{i}" for i in floats])
    for i, arg in floats.items():
        value = subject.captures[i]
        assert isinstance(value, Tensor)
        yield reads.captured(i, arg.name_hint or "?", value.requires_grad)


def is_of_floats(value: SSAValue) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and isinstance(kind.element_type, AnyFloat)


@dataclass(frozen=True)
class Reads:
    """The reads of a score mod that have adjoints."""

    indices: CaptureIndices
    loads: tuple[flex.LoadCaptureOp, ...]
    first: int
    """The number of the region's argument that is the first capture."""
    any_order: bool
    """What has a place for each pair may be added in any order."""

    @classmethod
    def of(cls, subject: Subject, wrt: list[str]) -> Reads:
        module = subject.simple.get_toplevel_object()
        assert isinstance(module, ModuleOp)
        op = next(
            o
            for o in derivative_module(module, Derivative(tuple(wrt))).walk()
            if isinstance(o, flex.AttentionBackwardOp)
        )
        code = backward_code(op)
        loads = [r for i, r in enumerate(code.reads) if f"read {i}" in code.yields]
        length = op.fact("max_length", full(32).hi)
        indices = CaptureIndices(op.score_mod, length, op.indices_fit is not None)
        return cls(
            indices,
            tuple(loads),
            len(op.score_mod.block.args) - len(subject.captures),
            adds_by_atomics(subject) and not subject.call.deterministic,
        )

    def captured(self, number: int, name: str, wanted: bool) -> CaptureGradient:
        """The gradient of a capture, from its reads."""
        tensor = self.indices.region.block.args[self.first + number]
        loads = [load for load in self.loads if load.tensor is tensor]
        try:
            found = [self.read(load) for load in loads]
        except GradientError as error:
            return CaptureGradient(name, wanted, (), str(error))
        return CaptureGradient(name, wanted, tuple(dict.fromkeys(found)))

    def read(self, load: flex.LoadCaptureOp) -> ReadGradient:
        known = self.indices.read(load)
        by, atomics = BY[known.index_class], self.any_order and known.by_pair
        why = "" if known.injective else known.why
        return ReadGradient(spell(load.result), by, why, atomics)


def adds_by_atomics(subject: Subject) -> bool:
    """Whether sums are added by the threads of a GPU, here or not."""
    call = subject.call
    on_cpu = call.query.device.type == "cpu"
    return call.backend == "triton" and not (on_cpu and is_interpreting())


def queries_of_keys(subject: Subject) -> tuple[Way, str]:
    """How blocks of queries are found for a block of keys, and why in this way."""
    match subject.way:
        case "no mask":
            return "no mask", "every block is visited"
        case "planned":
            return "tables", "all blocks are planned for keys too"
        case "tables":
            return "tables", "those of its BlockMask for keys, or these transposed"
        case "every pair":
            return "every pair", "no block is skipped"
        case "bounds":
            pass
    op = key_value_sums(subject)
    keys = SegmentSubject.of_sums(op)
    build = replace(subject.compiled.build, tiles=NO_OPTIONS, derivative=True)
    convert = convert_for(build)
    tile = convert.pair_sums_sizes(op, keys)
    match keys.ranges(tile.block_m, tile.block_n):
        case Proven(found):
            live = RangeSpeller(keys.solved, transposed=True).ranges(found.live)
            return "bounds", f"may be live: {live}"
        case WhyNot(reason):
            return "every pair", reason


def key_value_sums(subject: Subject) -> flex.PairSumsOp:
    """The sums that the gradients of key and value are."""
    module = subject.simple.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    expanded = derivative_module(module, Derivative(("key", "value")))
    FlexExpandDerivativesPass().apply(Context(), expanded)
    sums = (o for o in expanded.walk() if isinstance(o, flex.PairSumsOp))
    return next(op for op in sums if op.is_transposed)
