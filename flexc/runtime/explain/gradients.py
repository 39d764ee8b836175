"""Descriptions of the gradients of a call: of captured tensors, and over blocks.

The adjoints of a read are summed over all pairs that read the same element. `by` names
the coordinates of the sums, and so determines the number of sums to add to the gradient
of the captured tensor.
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
from flexc.dialects.flex import CAPTURE, Coordinates
from flexc.errors import GradientError
from flexc.passes import pipelines
from flexc.passes.flex.flex_differentiate import Derivative, derivative_module
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex.flex_infer_key_ranges import FlexInferKeyRangesPass, ranges_for
from flexc.passes.flex.pair_code import backward_code
from flexc.passes.scalar import Proven, WhyNot
from flexc.passes.scalar.captured_reads import CaptureIndices
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.readable import spell
from flexc.runtime.autograd.gradient_kernels import has_programs_of_heads, ways
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.options import NO_OPTIONS, is_interpreting
from flexc.runtime.kernels.driver import convert_for

BlockSource = Literal["no mask", "bounds", "tables", "every pair"]

QUERIES = "blocks of queries"

BY_HEAD = "added by atomics in {} order, by programs of each query head, in fp32"

ONE_PASS = (
    "added by atomics in {} order, by the kernel that computes key and value; summed "
    "by a kernel of its own if no schedule suits the mods"
)

VARY = 'bits may vary between runs, not with kernel_options={"deterministic": True}'


@dataclass(frozen=True)
class ReadGradient:
    """The summation of the adjoints of one read."""

    read: str
    """The read as text, such as `bias[h, q_idx - kv_idx]`."""
    by: Coordinates
    """The coordinate of each sum: a head, or a head's row, column, distance or pair.
    """
    why: str
    """The reason for sums by pair, if several pairs may read one element."""
    atomics: bool
    """True if atomics of a GPU add the sums in any order."""

    def __str__(self) -> str:
        text = f"by {self.by}: {self.read}"
        text += f", as {self.why}" if self.why else ""
        return text + (", added by atomics in any order" if self.atomics else "")


@dataclass(frozen=True)
class CaptureGradient:
    """The computation of the gradient of one captured tensor."""

    name: str
    wanted: bool
    """True if the tensor requires a gradient now."""
    reads: tuple[ReadGradient, ...]
    """The reads of the tensor that scores depend on."""
    refusal: str | None = None
    """The reason why flexc refuses to differentiate the tensor, or None."""

    def __str__(self) -> str:
        text = "\n".join(map(str, self.reads)) or "zero: no score depends on it"
        if self.refusal is not None:
            text = f"refused: {self.refusal}"
        return text if self.wanted else f"{text} (not asked for now)"


@dataclass(frozen=True)
class GradientFacts:
    """The computation of the gradients of a call."""

    captured: tuple[CaptureGradient, ...]
    """The gradients of the float tensors that `score_mod` captures."""
    way: BlockSource
    """The way to find the blocks of queries that a block of keys meets."""
    why: str

    deterministic: bool
    """True if all wanted gradients have equal bits at each run."""
    one_pass: bool = False
    """True if a GPU's kernel adds to the query's gradient while it computes those of
    key and value, provided that a schedule suits the mods."""
    by_head: bool = False
    """True if programs of each query head add to the gradients of key and value,
    provided that a schedule suits the mods."""

    @property
    def heading(self) -> str:
        if self.deterministic:
            return "equal bits at every run"
        return VARY

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of the lines to print."""
        for captured in self.captured:
            yield captured.name, str(captured)
        order = "a fixed" if self.deterministic else "any"
        if self.one_pass:
            yield "query", ONE_PASS.format(order)
        if self.by_head:
            yield "key, value", BY_HEAD.format(order)
        yield QUERIES, f"{self.way}: {self.why}"


def gradients_of(subject: Subject) -> GradientFacts:
    """Describe the gradients of a call."""
    if subject.call.computed_by.is_dense:
        why = 'backend="eager" differentiates dense attention, by torch'
        return GradientFacts((), "every pair", why, subject.call.deterministic)
    captured = tuple(captured_gradients(subject))
    varies = any(read.atomics for c in captured if c.wanted for read in c.reads)
    one_pass = computes_in_one_pass(subject)
    found = queries_of_keys(subject)
    varies |= one_pass and not subject.call.deterministic
    by_head = adds_by_head(subject, one_pass)
    varies |= by_head and not subject.call.deterministic
    return GradientFacts(captured, *found, not varies, one_pass, by_head)


def computes_in_one_pass(subject: Subject) -> bool:
    """Return True if a GPU's kernel adds to the query's gradient in memory."""
    call = subject.call
    wants = call.query.requires_grad, call.key.requires_grad or call.value.requires_grad
    if not (subject.proved.build.for_gpu and all(wants)):
        return False
    return "keys" in ways(call, subject.proved, ())


def adds_by_head(subject: Subject, one_pass: bool) -> bool:
    """Return True if a GPU's programs of each query head add to gradients of keys."""
    call = subject.call
    wants = call.key.requires_grad or call.value.requires_grad
    shares = call.query.shape[:2] != call.key.shape[:2]
    if not (wants and shares and subject.proved.build.for_gpu):
        return False
    has_own = has_programs_of_heads(call, subject.proved)
    return has_own and (one_pass or not call.deterministic)


def captured_gradients(subject: Subject) -> Iterator[CaptureGradient]:
    """Yield the gradients of captured float tensors, in the order of captures."""
    args = subject.simple.score_mod.block.args
    first = len(args) - len(subject.captures)
    floats = {i: a for i, a in enumerate(args[first:]) if a.uses and is_of_floats(a)}
    if not floats:
        return
    reads = ScoreReads.of(subject, [f"{CAPTURE}{i}" for i in floats])
    for i, arg in floats.items():
        value = subject.captures[i]
        assert isinstance(value, Tensor)
        yield reads.captured(i, arg.name_hint or "?", value.requires_grad)


def is_of_floats(value: SSAValue) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and isinstance(kind.element_type, AnyFloat)


@dataclass(frozen=True)
class ScoreReads:
    """The reads of a score mod that have adjoints."""

    indices: CaptureIndices
    loads: tuple[flex.LoadCaptureOp, ...]
    first: int
    """The number of the region's argument for the first capture."""
    any_order: bool
    """True if sums by pair may be added in any order."""

    @classmethod
    def of(cls, subject: Subject, wrt: list[str]) -> ScoreReads:
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
        """Describe the gradient of a capture, from its reads."""
        tensor = self.indices.region.block.args[self.first + number]
        loads = [load for load in self.loads if load.tensor is tensor]
        try:
            found = [self.read(load) for load in loads]
        except GradientError as error:
            return CaptureGradient(name, wanted, (), str(error))
        return CaptureGradient(name, wanted, tuple(dict.fromkeys(found)))

    def read(self, load: flex.LoadCaptureOp) -> ReadGradient:
        known = self.indices.read(load)
        by, atomics = known.coordinates, self.any_order and known.by_pair
        why = "" if known.injective else known.why
        return ReadGradient(spell(load.result), by, why, atomics)


def adds_by_atomics(subject: Subject) -> bool:
    """Return True if threads of a GPU add sums, on this machine or another."""
    call = subject.call
    on_cpu = call.query.device.type == "cpu"
    return call.computed_by.for_gpu and not (on_cpu and is_interpreting())


def queries_of_keys(subject: Subject) -> tuple[BlockSource, str]:
    """Return the way to find blocks of queries for a block of keys, and the reason."""
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
    build = replace(subject.proved.build, tiles=NO_OPTIONS, derivative=True)
    convert = convert_for(build)
    tile = convert.pair_sums_sizes(op)
    match ranges_for(op, tile.block_m, tile.block_n):
        case Proven(found):
            return "bounds", f"may be live: {found.live.data}"
        case WhyNot(reason):
            return "every pair", reason


def key_value_sums(subject: Subject) -> flex.PairSumsOp:
    """Return the op whose sums are the gradients of key and value."""
    module = subject.simple.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    expanded = derivative_module(module, Derivative(("key", "value")))
    passes = (FlexExpandDerivativesPass(), FlexInferKeyRangesPass())
    pipelines.run(passes, Context(), expanded)
    sums = (o for o in expanded.walk() if isinstance(o, flex.PairSumsOp))
    return next(op for op in sums if op.is_transposed)
