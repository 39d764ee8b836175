"""`flex-infer-facts`: prove facts about attention ops that later passes rely on.

For each fact in `FACTS` that an attention op does not state yet, a function looks for a
proof in the op's regions and facts. A proved fact becomes a property of the op. With
`explain`, the reason for a missing proof becomes an attribute.

- `score_range`: bounds of the scores, by interval arithmetic (see `float_values`).
- `scores_finite`: no score is infinite, so `score_mod` masks no pair.
- `rows_never_empty`: some key is seen by all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    IntegerType,
    ModuleOp,
    StringAttr,
    UnitAttr,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects import flex
from flexc.dialects.mod_region import INDEX_ARGS, yielded
from flexc.passes.flex.flex_simplify_mods import MOD, first_args
from flexc.passes.masks.bounds.facts import Facts
from flexc.passes.masks.bounds.key_bounds import Solver
from flexc.passes.masks.bounds.key_ranges import MAX_ALTERNATIVES
from flexc.passes.masks.bounds.terms import Atom, KeyBound, symbols
from flexc.passes.masks.bounds.widths import term_range
from flexc.passes.masks.segments.sequences import PackedSequences
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.formula import mask_formula
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.float_intervals import FloatInterval, point
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges, culprit
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges


def first_key_is_seen(mask: Region, max_length: int, fits: bool) -> Proof[None]:
    """Prove that a mask keeps key 0 in all rows, for any lengths and captures."""
    facts = Facts(mask, max_length, fits)
    for atoms in Solver(facts).cases(mask_formula(mask), MAX_ALTERNATIVES) or ():
        if all(allows_first_key(facts, atom) for atom in atoms):
            return Proven(None)
    return WhyNot("no part of the mask is seen to be true of key 0 in all rows")


def allows_first_key(facts: Facts, atom: Atom) -> bool:
    """Return True if an atom is known to hold for key 0 in every row."""
    if not isinstance(atom, KeyBound):
        return False
    if any(not s.sized or s.least is not None for s in symbols(atom.term)):
        return False  # The bound is that of the mask only if run-time checks pass.
    limit = term_range(atom.term, facts.ranges)
    return limit.lo >= 0 if atom.upper else limit.hi <= 0


Numbers = Sequence[float | int | Interval | None]

Inference = Callable[[flex.WithMods], Proof[Attribute]]


def score_range(op: flex.WithMods, numbers: Numbers = ()) -> Proof[flex.FloatRangeAttr]:
    """Prove bounds of the scores that are not -inf.

    `numbers` holds the value of each capture of a call, or None if unknown.
    """
    score, ranges = yielded_score(op, numbers)
    bounds = ranges.without_minus_inf(score)
    if not bounds.is_finite:
        return WhyNot(culprit(score, ranges))
    return Proven(flex.FloatRangeAttr.of(bounds.lo, bounds.hi))


def scores_finite(op: flex.WithMods, numbers: Numbers = ()) -> Proof[Attribute]:
    """Prove that no score is infinite; `numbers` is as for `score_range`."""
    score, ranges = yielded_score(op, numbers)
    return (
        Proven(UnitAttr())
        if ranges[score].is_finite
        else WhyNot(culprit(score, ranges))
    )


def rows_never_empty(op: flex.WithMods) -> Proof[Attribute]:
    """Prove that every row sees some key."""
    if op.tables:
        return WhyNot("tables may list no block for a row")
    if op.has_pairs is None and flex.tensor_shape(op.key)[2] <= 0:
        return WhyNot("kv_len may be 0")
    mask, packed = op.mask_mod, PackedSequences.of(op)
    if packed is not None:
        if not packed.is_self:
            return WhyNot("a sequence may have no keys")
        mask = packed.relative(mask)
    length = op.fact("max_length", INDEX.hi + 1)
    seen = first_key_is_seen(mask, length, op.indices_fit is not None)
    return seen if isinstance(seen, WhyNot) else Proven(UnitAttr())


FACTS: dict[str, Inference] = {
    "score_range": score_range,
    "scores_finite": scores_finite,
    "rows_never_empty": rows_never_empty,
}
"""The proofs of properties by name, in the order in which they run."""


def yielded_score(
    op: flex.WithMods, numbers: Numbers = ()
) -> tuple[SSAValue, FloatRanges]:
    """Return the value that `score_mod` yields, and the ranges of its values."""
    length = op.fact("max_length", INDEX.hi + 1)
    position = Interval(0, min(length - 1, INDEX.hi))
    score = own_score(op)
    ranges = score_ranges(score, (*MOD[:2], position, position), numbers)
    return yielded(score.block)[0], ranges


def own_score(op: flex.WithMods) -> Region:
    """Return the score mod, of positions within a sequence if sequences are packed."""
    packed = PackedSequences.of(op)
    return op.score_mod if packed is None else packed.relative(op.score_mod, first=1)


def score_ranges(
    mod: Region,
    indices: Sequence[Interval],
    numbers: Numbers,
    score: FloatInterval | None = None,
) -> FloatRanges:
    """Return the ranges of the values of a score mod.

    `indices` bounds b, h, q_idx and kv_idx; `score` bounds the score argument.
    """
    integers = first_args(mod, indices, skip=1)
    args = mod.block.args
    floats: dict[SSAValue, FloatInterval] = {} if score is None else {args[0]: score}
    for arg, value in zip(args[1 + len(INDEX_ARGS) :], numbers, strict=False):
        if isinstance(value, float) and arg.type in FORMATS:
            floats[arg] = point(value, FORMATS[arg.type])
        elif isinstance(value, int) and isinstance(arg.type, IntegerType):
            integers[arg] = intervals.point(value)
        elif isinstance(value, Interval):
            integers[arg] = value
    return FloatRanges(ValueRanges(integers), floats)


MAX_DOT = 2.0**14
"""The largest dot product for which score growth is judged.

The f32 rounding error of such a dot product is at most 2^-10.
"""

MAX_GROWTH = 2.0**4
"""The factor by which a score may exceed `MAX_DOT`."""


def score_growth_is_bounded(
    op: flex.WithMods, sizes: Sequence[int], numbers: Numbers
) -> bool:
    """Return True if dot products up to `MAX_DOT` give scores of about that size.

    The rounding error of a row's log-sum-exp is then no larger than that of its scores,
    and rows need no weights (see `pair_code`). `sizes` are upper bounds of B, Hq, Sq
    and Skv; `numbers` is as for `score_range`.
    """
    indices = [Interval(0, max(n - 1, 0)) for n in sizes]
    dots = FloatInterval(-MAX_DOT, MAX_DOT)
    score = own_score(op)
    ranges = score_ranges(score, indices, numbers, dots)
    found = ranges.without_minus_inf(yielded(score.block)[0])
    return found.is_finite and found.size <= MAX_DOT * MAX_GROWTH


def infer(op: flex.WithMods, explain: bool) -> None:
    """Add the facts that can be proved and are not stated."""
    for name, inference in FACTS.items():
        if name in op.properties:
            continue
        match inference(op):
            case Proven(value):
                op.properties[name] = value
            case WhyNot(reason):
                if explain:
                    op.attributes[f"no_{name}"] = StringAttr(reason)


@dataclass(frozen=True)
class FlexInferFactsPass(ModulePass):
    """A pass that proves facts about attention ops and adds them as properties."""

    name = "flex-infer-facts"

    explain: bool = False
    """Add the reason for each missing proof as an attribute."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, flex.WithMods):
                infer(inner, self.explain)
