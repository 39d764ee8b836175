"""Proofs about one call, made before its kernel is chosen.

A proof depends on lengths and captured numbers. A kernel depends only on the outcomes
of proofs, so the same code has at most one kernel for each combination of outcomes.

The prover first tries sizes and numbers that are rounded up. A decoding loop has new
lengths at each step, and few of these steps then need a proof of their own.

`read_mask` analyses how a mask's blocks are found: by bounds in closed form, which need
no work at run time, by classes of blocks, which are planned, or at all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor
from xdsl.dialects.builtin import (
    IntegerType,
    ModuleOp,
    UnitAttr,
)
from xdsl.ir import Attribute, Region

from flexc.dialects import flex
from flexc.dialects.flex import AttentionOp
from flexc.dialects.mod_region import is_scalar
from flexc.passes.flex import flex_infer_facts
from flexc.passes.flex.convert_flex_to_blocksparse import (
    ConvertFlexToBlocksparsePass,
    attention_shape,
    changes_scores,
)
from flexc.passes.flex.flex_infer_key_ranges import ranges_for
from flexc.passes.flex.flex_widen_indices import would_widen
from flexc.passes.flex.score_factor import narrow_scores
from flexc.passes.masks.blocks.block_classifier import Classifier, build_classifier
from flexc.passes.masks.bounds.key_ranges import KeyRanges
from flexc.passes.masks.bounds.widths import most_columns
from flexc.passes.masks.segments.mask_problem import MaskProblem, is_always_true
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.ranges.exact_ranges import (
    ExactRanges,
    Known,
    interval_of,
    known_of_call,
    position_args,
    rounded,
)
from flexc.passes.scalar.ranges.index_proofs import captures_inside, indices_fit
from flexc.passes.scalar.ranges.intervals import Interval, full, point
from flexc.passes.targets.gluon import most_few_keys
from flexc.passes.targets.target import Block, TileSizes, next_power_of_2
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.schedules import TRITON, obstacle_to_roles

Given = int | tuple[int, ...] | None
"""The knowledge about a capture of one call: an integer, a shape, or None."""

Fact = Known | float
"""The shape of a captured tensor, the value of a captured number, or None."""

MAX_KNOWN = 4096
"""The most outcomes that a prover remembers."""

MAX_SOLVED = 64
"""The most masks whose key ranges are remembered for proofs."""


@dataclass(frozen=True)
class Proofs:
    """The outcomes of proofs about a call.

    Each field is named after a property of `flex.attention`.
    """

    captures_inside: bool = False
    indices_fit: bool = False
    score_range: bool = False
    long_sequences: bool = False
    few_keys: bool = False

    def stated_in(self, module: ModuleOp) -> ModuleOp:
        """Return a module whose attention op states the proved facts.

        This is `module` itself if nothing is proved, else a copy.
        """
        proved = [name for name, holds in asdict(self).items() if holds]
        if proved:
            module = module.clone()
            op = attention_of(module)
            op.properties |= {name: PROOFS[name].states(op) for name in proved}
        return module


def _flag(op: flex.AttentionOp) -> Attribute:
    return UnitAttr()


Positions = Sequence[Interval]


@dataclass(frozen=True)
class ProofRule:
    """A way to prove a fact, with the modules for which the fact is useful."""

    holds: Callable[[flex.AttentionOp, Positions, Sequence[Fact]], bool]
    helps: Callable[[flex.AttentionOp, Build], bool]
    states: Callable[[flex.AttentionOp], Attribute] = _flag
    """The value of the op's property that states the fact."""
    inherited: bool | None = True
    """The outcome for some sizes that is also that of smaller sizes; None for both."""


def _of_both_mods(
    holds: Callable[[Region, Positions, Sequence[Known]], bool],
) -> Callable[[flex.AttentionOp, Positions, Sequence[Fact]], bool]:
    """Return a proof that `holds` for the score region and for the mask region."""

    def prove(op: flex.AttentionOp, sizes: Positions, facts: Sequence[Fact]) -> bool:
        known = _without_floats(facts)
        return all(holds(mod, sizes, known) for mod in (op.score_mod, op.mask_mod))

    return prove


def _without_floats(facts: Sequence[Fact]) -> list[Known]:
    return [None if isinstance(fact, float) else fact for fact in facts]


def _has_guards_that_cost(op: flex.AttentionOp, build: Build) -> bool:
    """Return True if the op has captured loads whose guards slow the kernel down.

    Guards slow a GPU down, but hardly a CPU.
    """
    loads = (o for o in op.walk() if isinstance(o, flex.LoadCaptureOp))
    return build.for_gpu and any(loads)


def _has_wide_indices(op: flex.AttentionOp, build: Build) -> bool:
    return would_widen(op)


def _scores_are_narrow(
    op: flex.AttentionOp, sizes: Positions, facts: Sequence[Fact]
) -> bool:
    """Return True if the scores of a call lie within the bounds of `narrow_scores`.

    All captured numbers share one pair of bounds, so the numbers remain arguments of
    the kernel.
    """
    numbers = [None if isinstance(fact, tuple) else fact for fact in facts]
    found = flex_infer_facts.score_range(op, numbers)
    if isinstance(found, WhyNot):
        return False
    return max(map(abs, found.value.bounds)) <= narrow_scores(op)


def _one(type_: Attribute) -> float | None:
    if not is_scalar(type_):
        return None
    return 1 if isinstance(type_, IntegerType) else 1.0


def _depends_on_numbers(op: flex.AttentionOp, build: Build) -> bool:
    """Return True if captured numbers bound scores that have no bounds without them."""
    ones = [_one(c.type) for c in op.captures]
    without, given = (flex_infer_facts.score_range(op, n) for n in ((), ones))
    return isinstance(without, WhyNot) and isinstance(given, Proven)


def _narrow_range(op: flex.AttentionOp) -> Attribute:
    bound = narrow_scores(op)
    return flex.FloatRangeAttr.of(-bound, bound)


def _sequences_are_long(
    op: flex.AttentionOp, sizes: Positions, facts: Sequence[Fact]
) -> bool:
    assert op.sequences is not None
    *_, starts = op.sequences.get_values()
    shape, fewer = facts[starts], min(sizes[2].hi, sizes[3].hi) + 1
    assert isinstance(shape, tuple)
    return fewer >= flex.LONG_SEQUENCE * max(interval_of(shape[0]).lo - 1, 1)


def _has_sequences(op: flex.AttentionOp, build: Build) -> bool:
    return build.for_gpu and op.sequences is not None


def _most_few_keys(op: flex.AttentionOp) -> int:
    has_mask = not is_always_true(op.mask_mod)
    return most_few_keys(attention_shape(op), has_mask, changes_scores(op))


@lru_cache(MAX_SOLVED)
def _solved(op: flex.AttentionOp, fits: bool) -> Proof[KeyRanges]:
    return replace(MaskProblem.of(op), indices_fit=fits).solution


def most_seen_keys(
    op: flex.AttentionOp, sizes: Positions, facts: Sequence[Fact]
) -> int | None:
    """Return a limit to the keys that each query sees, or None if none is found."""
    mask, captures = op.mask_mod, _without_floats(facts)
    found = _solved(op, indices_fit(mask, sizes, captures))
    if isinstance(found, WhyNot):
        return None
    known = known_of_call(mask, sizes, captures)
    known[position_args(mask)[2]] = point(0)
    return most_columns(found.value.live, ExactRanges(mask, known))


def _keys_are_few(
    op: flex.AttentionOp, sizes: Positions, facts: Sequence[Fact]
) -> bool:
    most = _most_few_keys(op)
    if sizes[3].hi < most:
        return True
    seen = most_seen_keys(op, sizes, facts)
    # The limits were measured with causal masks, where a query sees half of the keys in
    # the mean.
    return seen is not None and 2 * seen <= most


def _may_have_small_programs(op: flex.AttentionOp, build: Build) -> bool:
    """Return True if the tile of an op depends on the number of keys.

    Calls whose programs all run at once keep larger ones.
    """
    tiles = build.tiles
    is_chosen = tiles.block_m or tiles.block_n or tiles.schedule == TRITON.name
    if is_chosen or build.program_rows is not None or op.sequences is not None:
        return False
    return obstacle_to_roles(build) is None and _most_few_keys(op) > 0


PROOFS = {
    "captures_inside": ProofRule(_of_both_mods(captures_inside), _has_guards_that_cost),
    "indices_fit": ProofRule(_of_both_mods(indices_fit), _has_wide_indices),
    "score_range": ProofRule(
        _scores_are_narrow, _depends_on_numbers, _narrow_range, inherited=None
    ),
    "long_sequences": ProofRule(_sequences_are_long, _has_sequences, inherited=False),
    "few_keys": ProofRule(_keys_are_few, _may_have_small_programs),
}


class Prover:
    """A prover for one module, which remembers the outcomes.

    The prover tries only the proofs that help the module's kernels.
    """

    def __init__(self, module: ModuleOp, build: Build):
        self.attention = attention_of(module)
        self.proofs = {
            name: proof
            for name, proof in PROOFS.items()
            if proof.helps(self.attention, build)
        }
        self.holds = lru_cache(MAX_KNOWN)(self._holds)

    def __call__(self, sizes: Sequence[int], captures: Sequence[Any]) -> Proofs:
        """Return the proofs for (batch, heads, q_len, kv_len) and capture arguments."""
        if not self.proofs:
            return Proofs()
        sizes, facts = tuple(sizes), tuple(map(_describe, captures))
        larger = tuple(map(next_power_of_2, sizes)), tuple(map(_generalised, facts))
        outcomes: dict[str, bool] = {}
        for name, proof in self.proofs.items():
            outcomes[name] = self.holds(name, *larger)
            if proof.inherited not in (None, outcomes[name]):
                outcomes[name] = self.holds(name, sizes, facts)
        return Proofs(**outcomes)

    def _holds(self, name: str, sizes: Sequence[int], facts: Sequence[Fact]) -> bool:
        """Return True if a fact is proved for calls of at most these sizes."""
        positions = [Interval(0, n - 1) for n in sizes]
        return self.proofs[name].holds(self.attention, positions, facts)


def attention_of(module: ModuleOp) -> flex.AttentionOp:
    """Return the attention op of a `flex` module."""
    return next(op for op in module.walk() if isinstance(op, flex.AttentionOp))


def _generalised(fact: Fact) -> Fact:
    return fact if isinstance(fact, float) else rounded(fact)


def _describe(capture: Any) -> Fact:
    return capture if isinstance(capture, float) else _known(capture)


def _known(capture: Any) -> Given:
    if isinstance(capture, Tensor):
        return tuple(capture.shape)
    return int(capture) if isinstance(capture, int) else None


def known_of(captures: Sequence[Any]) -> tuple[Given, ...]:
    """Return the shapes and integers of captures, None for floats."""
    return tuple(map(_known, captures))


def numbers_of(captures: Sequence[Any]) -> tuple[float | int | None, ...]:
    """Return the numbers among captures, None for tensors."""
    return tuple(c if isinstance(c, int | float) else None for c in captures)


MAX_PLANNED_BLOCKS = 1 << 22
"""The most blocks of a head that are planned; longer sequences get larger blocks."""

MIN_PLANNED_PAIRS = 1 << 20
"""The fewest pairs of a call for which planning saves more than it costs."""


@dataclass(frozen=True)
class MaskReading:
    """The analysis of one mask."""

    is_trivial: bool
    """True if there is no mask."""
    has_bounds: bool
    """True if the ranges of keys have a closed form for blocks of `tile`."""
    classifier: Proof[Classifier] | None
    """The classifier of blocks; None if the mask has bounds."""
    tile: TileSizes
    planned_block: Block
    """The rows and columns of a planned block.

    They are multiples of the tile of a kernel that reads tables. On a CPU, the number
    of columns is free.
    """
    least_derivative_block: Block | None
    """The least block for derivatives, None if they take any."""

    def is_planned(self, sizes: Sequence[int]) -> bool:
        """Return True if a call of (batch, heads, q_len, kv_len) plans its blocks."""
        many = math.prod(sizes) >= MIN_PLANNED_PAIRS
        return many and isinstance(self.classifier, Proven)

    def block_for(self, q_len: int, kv_len: int) -> Block:
        """Return the rows and columns of a planned block for these lengths."""
        m, n = self.planned_block
        while -(-q_len // m) * -(-kv_len // n) > MAX_PLANNED_BLOCKS:
            m, n = 2 * m, 2 * n
        return m, n

    def derivative_block(self, block: Block) -> Block | None:
        """Return the rows and columns of the blocks that are planned for derivatives.

        Return None if they are the planned `block`.
        """
        if self.least_derivative_block is None:
            return None
        m, n = map(max, self.least_derivative_block, block)
        return None if (m, n) == block else (m, n)


def read_mask(op: AttentionOp, convert: ConvertFlexToBlocksparsePass) -> MaskReading:
    """Analyse the mask of an attention op that states its key ranges."""
    tile = convert.tile_sizes(op)
    has_bounds = isinstance(ranges_for(op, tile.block_m, tile.block_n), Proven)
    classifier = None
    if not has_bounds:
        length, fits = op.fact("max_length", full(32).hi), op.indices_fit is not None
        classifier = build_classifier(op.mask_mod, length, fits)
    return MaskReading(
        is_always_true(op.mask_mod),
        has_bounds,
        classifier,
        tile,
        _planned_block(op, convert),
        _derivative_block(op, convert),
    )


def _planned_block(op: AttentionOp, convert: ConvertFlexToBlocksparsePass) -> Block:
    tile = convert.tile_sizes(op, short_rows=True)
    return convert.rules.planned_block(tile, convert.block_m is not None)


def _derivative_block(
    op: AttentionOp, convert: ConvertFlexToBlocksparsePass
) -> Block | None:
    shape = attention_shape(op)
    widest = max(shape.head_dim, shape.value_dim)
    return convert.rules.derivative_block(shape.bits, widest)
