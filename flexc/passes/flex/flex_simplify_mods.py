"""`flex-simplify-mods`: simplify scalar code with the known ranges of indices.

The pass visits every region of scalar code: score and mask mods, the regions of
segments, the bodies of maps. It folds constants, applies identities, merges equal ops
and erases unused ones; see `canonicalization`.

Batch, head, query and key indices are never negative and, as lengths are i32, at most
2**31 - 2. Sizes are not negative either. Interval arithmetic, in which sums may wrap,
propagates these ranges through the code. With them the index of a captured tensor loses
the wrapping of negative numbers that the frontend wrote. Python's `//` and `%` of
indices become plain division, or shifts and masks for powers of two.

`flex-trust-captures`: drop the guards of captured loads that are in range. If an
attention op states `captures_inside`, its captured loads need no range test, and their
indices need no wrapping of negative numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.ir import Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.ranges.index_proofs import unwrapped
from flexc.passes.scalar.ranges.intervals import INDEX, LENGTH, Interval, full
from flexc.passes.scalar.ranges.value_ranges import ValueRanges

MOD = (INDEX,) * len(INDEX_ARGS)

BOUNDS = (INDEX, INDEX, INDEX, LENGTH, LENGTH)
"""The ranges of b, h, q_start, q_len, kv_len."""

BLOCK = (INDEX, INDEX, INDEX, full(32), LENGTH, LENGTH)
"""The ranges of b, h, q_start, i, q_len, kv_len."""

Known = dict[SSAValue, Interval]


def first_args(region: Region, ranges: Sequence[Interval], skip: int = 0) -> Known:
    """Map a region's arguments after the first `skip` to `ranges`."""
    args = region.block.args[skip : skip + len(ranges)]
    return dict(zip(args, ranges, strict=True))


def known_of_map(op: tile.MapOp) -> Known:
    """Return the ranges of a map's scalar operands, derived from the code outside."""
    outside = ValueRanges({})
    return {
        arg: outside[value]
        for arg, value in zip(op.body.block.args, op.inputs, strict=True)
        if isinstance(value.type, IntegerType)
    }


def scalar_regions(op: Operation) -> Iterable[tuple[Region, Known]]:
    """Yield the regions of scalar code of an op, with the ranges of their arguments."""
    match op:
        case flex.AttentionOp() | flex.DerivativeOp():
            yield op.score_mod, first_args(op.score_mod, MOD, skip=1)
            yield op.mask_mod, first_args(op.mask_mod, MOD)
        case flex.PairSumsOp():
            yield op.pairs, first_args(op.pairs, MOD, skip=op.first_index)
            yield op.mask_mod, first_args(op.mask_mod, MOD)
        case blocksparse.PairSumsOp():
            yield op.pairs, first_args(op.pairs, MOD, skip=op.first_index)
        case blocksparse.AttentionOp():
            yield op.score_mod, first_args(op.score_mod, MOD, skip=1)
        case blocksparse.SegmentOp():
            yield op.bounds, first_args(op.bounds, BOUNDS)
            yield op.block, first_args(op.block, BLOCK)
            if op.partial_if is not None:
                yield op.partial_if, first_args(op.partial_if, BLOCK)
            if op.mask_mod is not None:
                yield op.mask_mod, first_args(op.mask_mod, MOD)
        case tile.MapOp():
            yield op.body, known_of_map(op)
        case _:
            return


@dataclass(frozen=True)
class FlexSimplifyModsPass(ModulePass):
    """A pass that simplifies regions of scalar code."""

    name = "flex-simplify-mods"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            for region, known in scalar_regions(inner):
                simplify_region(region, known)


def trust(attention: flex.WithMods) -> None:
    """Replace an op's captured loads by loads without range tests."""
    for op in list(attention.walk()):
        if not isinstance(op, flex.LoadCaptureOp) or op.inside is not None:
            continue
        indices = [unwrapped(index) for index in op.indices]
        load = flex.LoadCaptureOp(op.tensor, indices, inside=True)
        load.location = op.location
        load.result.name_hint = op.result.name_hint
        Rewriter.replace_op(op, [load], [load.result])


@dataclass(frozen=True)
class FlexTrustCapturesPass(ModulePass):
    """A pass that drops the guards of captured loads that are in range."""

    name = "flex-trust-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in list(op.walk()):
            if isinstance(attention, flex.WithMods) and attention.captures_inside:
                trust(attention)
