"""`flex-infer-facts`: prove what later passes may rely on, and write it down.

For each fact in the table that an attention op does not state yet, a function looks
for a proof in the op's regions and facts. What is proved becomes a property of the
op; with `explain`, what is not becomes an attribute that says why.

- `score_range`: bounds of the scores, by interval arithmetic (see `float_values`).
- `scores_finite`: no score is infinite, so none of a mod's own is a mask.
- `rows_never_empty`: some key is seen by all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerType,
    ModuleOp,
    StringAttr,
    UnitAttr,
    f64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects import flex
from flexc.passes.flex.flex_simplify_mods import (
    INDEX,
    MOD,
    first_args,
)
from flexc.passes.masks.bounds.affine import Facts
from flexc.passes.masks.bounds.atoms import Atom, KeyBound
from flexc.passes.masks.bounds.key_bounds import Solver
from flexc.passes.masks.bounds.key_ranges import MAX_ALTERNATIVES, conjunctions
from flexc.passes.masks.bounds.terms import (
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
)
from flexc.passes.scalar.formula import alternatives, mask_formula
from flexc.passes.scalar.proof import (
    Proof,
    Proven,
    WhyNot,
)
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.float_intervals import FloatInterval, point
from flexc.passes.scalar.ranges.float_values import (
    FORMATS,
    FloatRanges,
    culprit,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges

# Whether every row has a live key, whatever the lengths and captured values.
#
# Shown by a key that all rows see: the first one, as there is always that.


WIDTH = 1 << 10
"""Bits in which no term wraps around."""


def first_key_is_seen(mask: Region, max_length: int, fits: bool) -> Proof[None]:
    """Whether a mask is true of key 0 in all rows."""
    facts = Facts(mask, max_length, fits)
    found = alternatives(mask_formula(mask), MAX_ALTERNATIVES)
    solver = Solver(facts)
    for leaves in found or ():
        for atoms in conjunctions(solver, leaves):
            if all(allows_first_key(facts, atom) for atom in atoms):
                return Proven(None)
    return WhyNot("no part of the mask is seen to be true of key 0 in all rows")


def allows_first_key(facts: Facts, atom: Atom) -> bool:
    """Whether an atom is known to hold for key 0, whatever the row."""
    if not isinstance(atom, KeyBound):
        return False
    limit = term_range(facts, atom.term)
    if limit is None:
        return False
    return limit.lo >= 0 if atom.upper else limit.hi <= 0


def term_range(facts: Facts, term: Term) -> Interval | None:
    """What a term may be; None where nothing is known."""
    match term:
        case Constant():
            return intervals.point(term.value)
        case Symbol() if term.sized and term.least is None:
            return facts.ranges[term.value]
        case RowValue(checked=()):
            return facts.ranges[term.value]
        case Sum():
            left = term_range(facts, term.left)
            right = term_range(facts, term.right)
            if left is None or right is None:
                return None
            return intervals.add(left, right, WIDTH)
        case Negative():
            inner = term_range(facts, term.term)
            if inner is None:
                return None
            return intervals.subtract(intervals.point(0), inner, WIDTH)
        case Quotient(divisor=Constant() as number):
            return _with_number(facts, term.term, number, intervals.floor_divide)
        case Product(factor=Constant() as number):
            return _with_number(facts, term.term, number, intervals.multiply)
        case _:
            return None


def _with_number(
    facts: Facts,
    term: Term,
    number: Constant,
    transfer: Callable[[Interval, Interval, int], Interval],
) -> Interval | None:
    inner = term_range(facts, term)
    if inner is None:
        return None
    return transfer(inner, intervals.point(number.value), WIDTH)


Numbers = Sequence[float | int | Interval | None]

Inference = Callable[[flex.WithMods], Proof[Attribute]]


def score_range(op: flex.WithMods, numbers: Numbers = ()) -> Proof[Attribute]:
    """Bounds of the scores that weigh something.

    `numbers` are the values of the captures where a call's are known, else None.
    """
    score, ranges = yielded_score(op, numbers)
    bounds = ranges.without_minus_inf(score)
    if not bounds.is_finite:
        return WhyNot(culprit(score, ranges))
    return Proven(DenseArrayBase.from_list(f64, [bounds.lo, bounds.hi]))


def scores_finite(op: flex.WithMods, numbers: Numbers = ()) -> Proof[Attribute]:
    """Whether no score masks by being -inf; `numbers` as for `score_range`."""
    score, ranges = yielded_score(op, numbers)
    return (
        Proven(UnitAttr())
        if ranges[score].is_finite
        else WhyNot(culprit(score, ranges))
    )


def rows_never_empty(op: flex.WithMods) -> Proof[Attribute]:
    """Whether there are keys, one of which every row sees."""
    if op.tables:
        return WhyNot("tables may list no block for a row")
    if op.has_keys is None and flex.tensor_shape(op.key)[2] <= 0:
        return WhyNot("kv_len may be 0")
    length = op.fact("max_length", INDEX.hi + 1)
    seen = first_key_is_seen(op.mask_mod, length, op.indices_fit is not None)
    return seen if isinstance(seen, WhyNot) else Proven(UnitAttr())


FACTS: dict[str, Inference] = {
    "score_range": score_range,
    "scores_finite": scores_finite,
    "rows_never_empty": rows_never_empty,
}
"""How the properties of these names are inferred, in this order: an inference may
read facts above it."""


def yielded_score(
    op: flex.WithMods, numbers: Numbers = ()
) -> tuple[SSAValue, FloatRanges]:
    """What `score_mod` yields, and the ranges of its region's values."""
    last = op.score_mod.block.last_op
    assert isinstance(last, flex.YieldOp)
    length = op.fact("max_length", INDEX.hi + 1)
    position = Interval(0, min(length - 1, INDEX.hi))
    indices = (*MOD[:2], position, position)
    integers = first_args(op.score_mod, indices, skip=1)
    floats: dict[SSAValue, FloatInterval] = {}
    captures = op.score_mod.block.args[1 + len(indices) :]
    for arg, value in zip(captures, numbers, strict=False):
        if isinstance(value, float) and arg.type in FORMATS:
            floats[arg] = point(value, FORMATS[arg.type])
        elif isinstance(value, int) and isinstance(arg.type, IntegerType):
            integers[arg] = intervals.point(value)
        elif isinstance(value, Interval):
            integers[arg] = value
    return last.values[0], FloatRanges(ValueRanges(integers), floats)


def infer(op: flex.WithMods, explain: bool) -> None:
    """Add the facts that can be proved and that are not stated."""
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
    """Prove facts about attention ops and attach them."""

    name = "flex-infer-facts"

    explain: bool = False
    """Attach why a fact was not proved."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, flex.WithMods):
                infer(inner, self.explain)
