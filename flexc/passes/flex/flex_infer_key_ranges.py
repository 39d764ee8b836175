"""`flex-infer-key-ranges`: state which columns a block of rows may see, in closed form.

The property `key_ranges` describes the bounds that `convert-flex-to-blocksparse` writes
into segments. If a mask has none, the property `no_key_ranges` is the reason.

Ranges are printed as a person would write them, such as
`kv_idx in [max(0, q_first - window), q_last]`, where `q_first` and `q_last` are the
first and last row of a block. Both ends are included. If rows are keys, they are
written as `q_idx in [kv_first, min(q_len - 1, kv_last + window)]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass

from flexc.dialects import flex
from flexc.dialects.flex import KeyRangesAttr
from flexc.passes.masks.bounds.key_ranges import End, KeyRange, for_blocks
from flexc.passes.masks.bounds.terms import (
    LARGE,
    Choice,
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
    addends,
    negate,
)
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.mask_segments import growth, moves
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.formula import Leaf
from flexc.passes.scalar.predicates import OPERATORS, opposite, predicate_of
from flexc.passes.scalar.readable import Speller, spell


class RangeSpeller:
    """A printer of the ranges of one mask with arguments (b, h, row, column).

    Rows are queries, or keys if `transposed`.
    """

    def __init__(self, mask: Region, transposed: bool = False):
        self.row_idx: SSAValue = mask.block.args[2]
        self.row, self.column = ("kv", "q") if transposed else ("q", "kv")
        self.first_row, self.last_row = f"{self.row}_first", f"{self.row}_last"

    def ranges(self, ranges: Sequence[KeyRange]) -> str:
        """Return the union of some ranges of columns."""
        if not ranges:
            return "none"
        if any(r.is_everything for r in ranges):
            return "all"
        return f"{self.column}_idx in " + " or ".join(map(self.range, ranges))

    def range(self, keys: KeyRange) -> str:
        """Return one range, with the conditions under which it is not empty."""
        lows = [self.end(end) for end in keys.lows]
        if not any(_is_natural(end.term) for end in keys.lows):
            lows.insert(0, "0")
        highs = [self.end(end) for end in keys.highs] or [f"{self.column}_len - 1"]
        interval = f"[{_extreme('max', lows)}, {_extreme('min', highs)}]"
        when = " and ".join(self.conditions(keys))
        return f"{interval} if {when}" if when else interval

    def conditions(self, keys: KeyRange) -> Iterable[str]:
        """Yield the conditions under which a range is not empty."""
        for term in keys.row_lows:
            yield f"{self.last_row} >= {self.term(term, False)}"
        for term in keys.row_highs:
            yield f"{self.first_row} <= {self.term(term, False)}"
        for leaf in keys.conditions:
            yield spell_leaf(leaf)

    def end(self, end: End) -> str:
        return self.term(end.term, end.at_last)

    def term(self, term: Term, at_last: bool, inner: bool = False) -> str:
        """Return a term at the first or last row; `inner` adds needed parentheses."""
        match term:
            case Symbol():
                return Speller().spell(term.value, outer=not inner)
            case RowValue():
                names = {self.row_idx: self.last_row if at_last else self.first_row}
                return Speller(names).spell(term.value, outer=not inner)
            case Sum() | Negative() | Constant():
                text, parts = self._sum(term, at_last)
                return f"({text})" if inner and parts > 1 else text
            case Product():
                factor = self.term(term.factor, at_last, inner=True)
                text = f"{self.term(term.term, at_last, inner=True)} * {factor}"
            case Quotient():
                divisor = self.term(term.divisor, at_last, inner=True)
                text = f"{self.term(term.term, at_last, inner=True)} // {divisor}"
            case Choice():
                left, right, holds, fails = (
                    self.term(t, at_last)
                    for t in (term.left, term.right, term.holds, term.fails)
                )
                return f"where({left} <= {right}, {holds}, {fails})"
        return f"({text})" if inner else text

    def _sum(self, term: Term, at_last: bool) -> tuple[str, int]:
        """Return a sum with its constants added up, and the number of its parts."""
        constant, added, taken = 0, list[str](), list[str]()
        for part, sign in addends(term):
            match part:
                case Constant():
                    constant += sign * part.value
                case Quotient() if sign < 0:
                    added.append(self._ceil(part, at_last))
                case _:
                    text = self.term(part, at_last, inner=sign < 0)
                    (added if sign > 0 else taken).append(text)
        added.sort(key=lambda text: not text.startswith(f"{self.row}_"))
        if constant > 0 or not (added or taken):
            added.append(_number(constant))
        text = " + ".join(added)
        for part in taken:
            text = f"{text} - {part}" if text else f"-{part}"
        if constant < 0 and (added or taken):
            text = f"{text} - {_number(-constant)}"
        return text, len(added) + len(taken) + (constant < 0)

    def _ceil(self, taken: Quotient, at_last: bool) -> str:
        """Return -(t // c), printed as ceil(-t / c)."""
        above = self.term(negate(taken.term), at_last, inner=True)
        return f"ceil({above} / {self.term(taken.divisor, at_last, inner=True)})"


def spell_leaf(leaf: Leaf) -> str:
    """Return a leaf as text, a negated comparison as the opposite comparison."""
    text = spell(leaf.value)
    op = leaf.value.owner
    if not leaf.negated:
        return text
    if isinstance(op, arith.CmpiOp):
        left, right = (Speller().spell(v) for v in op.operands)
        operator = OPERATORS[opposite(predicate_of(op))[-2:]]
        return f"{left} {operator} {right}"
    return f"not {text}"


def _number(value: int) -> str:
    if abs(value) >= LARGE:
        return "inf" if value > 0 else "-inf"
    return str(value)


def _is_natural(term: Term) -> bool:
    """Return True if the form of a bound shows that the bound is not negative."""
    match term:
        case Constant():
            return term.value >= 0
        case RowValue(step=1):
            return True
        case Sum():
            return _is_natural(term.left) and _is_natural(term.right)
        case Product() | Quotient():
            return _is_natural(term.term)
        case Negative(term=Quotient(term=above)):
            return _is_natural(negate(above))
        case _:
            return False


def _extreme(name: str, bounds: Sequence[str]) -> str:
    bounds = list(dict.fromkeys(bounds))
    return bounds[0] if len(bounds) == 1 else f"{name}({', '.join(bounds)})"


def infer_key_ranges(problem: MaskProblem) -> Proof[KeyRangesAttr]:
    """Return the ranges of a mask, or the reason why its blocks have no closed form."""
    found = problem.solution
    if isinstance(found, WhyNot):
        return found
    ranges = found.value
    speller = RangeSpeller(problem.solved, problem.transposed)
    moving = [moves(r) for r in ranges.live]
    own = " of the sequence" if problem.packed else ""
    attr = KeyRangesAttr(
        StringAttr(speller.ranges(ranges.live) + own),
        StringAttr(speller.ranges(ranges.dead) + own),
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
            if not isinstance(inner, flex.AttentionOp | flex.PairSumsOp):
                continue
            match infer_key_ranges(MaskProblem.of(inner)):
                case Proven(ranges):
                    inner.key_ranges = ranges
                case WhyNot(reason):
                    inner.no_key_ranges = StringAttr(reason)
