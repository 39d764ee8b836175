"""`flex-infer-key-ranges`: state which columns a block of rows may see, in closed form.

The property `key_ranges` describes the bounds that `convert-flex-to-blocksparse` writes
into segments. If a mask has none, the property `no_key_ranges` is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.passes import ModulePass

from flexc.dialects import flex
from flexc.dialects.flex import KeyRangesAttr
from flexc.passes.masks.bounds.describe_ranges import RangeSpeller
from flexc.passes.masks.bounds.key_ranges import for_blocks
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.mask_segments import growth, moves
from flexc.passes.scalar.proof import Proof, Proven, WhyNot


def infer_key_ranges(problem: MaskProblem) -> Proof[KeyRangesAttr]:
    """Return the ranges of a mask, or the reason why its blocks have no closed form."""
    found = problem.solution
    if isinstance(found, WhyNot):
        return found
    ranges = found.value
    speller = RangeSpeller(problem.solved, problem.transposed)
    moving = [moves(r) for r in ranges.live]
    attr = KeyRangesAttr(
        StringAttr(speller.ranges(ranges.live)),
        StringAttr(speller.ranges(ranges.dead)),
        StringAttr(("none", "positive", "negative")[growth(ranges)]),
        StringAttr("all" if all(moving) else "some" if any(moving) else "none"),
        ArrayAttr(ranges.remainders),
    )
    return Proven(attr)


def ranges_for(op: flex.PairsOp, block_m: int, block_n: int) -> Proof[KeyRangesAttr]:
    """Return the stated ranges, or the reason why blocks of this size have none."""
    if op.key_ranges is not None:
        return for_blocks(Proven(op.key_ranges), block_m, block_n)
    reason = op.no_key_ranges
    return WhyNot("its ranges were not inferred" if reason is None else reason.data)


@dataclass(frozen=True)
class FlexInferKeyRangesPass(ModulePass):
    """A pass that states the key ranges of attention and of sums over pairs."""

    name = "flex-infer-key-ranges"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            match inner:
                case flex.AttentionOp():
                    proof = infer_key_ranges(MaskProblem.of(inner))
                case flex.PairSumsOp():
                    proof = infer_key_ranges(MaskProblem.of_sums(inner))
                case _:
                    continue
            match proof:
                case Proven(ranges):
                    inner.key_ranges = ranges
                case WhyNot(reason):
                    inner.no_key_ranges = StringAttr(reason)
